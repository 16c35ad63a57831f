"""What every runner does: it is a `concurrent.futures.Executor`, and its tasks run as written."""

from __future__ import annotations

import operator
from concurrent.futures import wait
from typing import TYPE_CHECKING

import pytest

from packer.runners import make_runner, stop_runner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

__all__ = ["RunnerContract"]


class RunnerContract:
    """Inherited by the tests of each runner."""

    name: str

    @pytest.fixture
    def runner(self) -> Iterator[Executor]:
        """A runner of two workers."""
        runner = make_runner(self.name, 2)
        yield runner
        stop_runner(runner)

    def test_results_belong_to_their_tasks(self, runner: Executor) -> None:
        futures = [runner.submit(divmod, number, 7) for number in range(50)]
        assert [future.result() for future in futures] == [divmod(number, 7) for number in range(50)]

    def test_keyword_arguments_arrive(self, runner: Executor) -> None:
        assert runner.submit(sorted, [1, 3, 2], reverse=True).result() == [3, 2, 1]

    def test_an_error_belongs_to_its_task_alone(self, runner: Executor) -> None:
        bad, good = runner.submit(operator.truediv, 1, 0), runner.submit(operator.truediv, 1, 2)
        with pytest.raises(ZeroDivisionError):
            bad.result()
        assert good.result() == 0.5

    def test_shutting_down_finishes_what_was_submitted(self, runner: Executor) -> None:
        futures = [runner.submit(pow, 2, number) for number in range(20)]
        runner.shutdown()
        assert all(future.done() for future in futures)
        assert futures[-1].result() == 2**19

    def test_all_tasks_end_in_time(self, runner: Executor) -> None:
        done, left = wait([runner.submit(str, n) for n in range(300)], timeout=60)
        assert (len(done), len(left)) == (300, 0)
