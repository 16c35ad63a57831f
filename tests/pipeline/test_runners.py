"""The runners, by their contract; and what only processes promise."""

from __future__ import annotations

import os
import signal

import pytest

from packer.runners.processes import ProcessRunner
from packer_reader.errors import WorkerError
from tests.contracts.runner import RunnerContract


class UnreadableError(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one + two)


def raise_unreadable() -> None:
    raise UnreadableError(1, 2)


class TestSerial(RunnerContract):
    name = "serial"


class TestProcesses(RunnerContract):
    name = "processes"

    def test_a_death_fails_its_own_task_and_is_named(self) -> None:
        with ProcessRunner(2) as runner:
            deadly = runner.submit(signal.raise_signal, signal.SIGKILL)
            others = [runner.submit(abs, -n) for n in range(20)]
            with pytest.raises(WorkerError, match=r"worker process \d+ was ended by SIGKILL") as caught:
                deadly.result()
            assert [other.result() for other in others] == list(range(20))
            assert str(caught.value).startswith(f"worker process {caught.value.process} ")
            with pytest.raises(WorkerError, match="ended with exit code 3"):
                runner.submit(os._exit, 3).result()

    def test_what_cannot_be_sent_is_an_error_of_its_task(self) -> None:
        with ProcessRunner(1) as runner:
            with pytest.raises(Exception, match="pickle"):
                runner.submit(lambda: 0).result()
            with pytest.raises(RuntimeError, match="pickle"):
                runner.submit(eval, "lambda: 0").result()
            with pytest.raises(RuntimeError, match="a worker's answer cannot be read"):
                runner.submit(raise_unreadable).result()
            assert runner.submit(int, 3).result() == 3

    def test_a_server_that_dies_is_started_again(self) -> None:
        with ProcessRunner(2) as runner:
            number = runner.submit(os.getppid).result()
            os.kill(number, signal.SIGKILL)
            with pytest.raises(WorkerError, match="was ended|did not start|ended with"):
                runner.submit(signal.raise_signal, signal.SIGKILL).result()
            results: list[int] = []
            while not results:
                try:
                    results.append(runner.submit(int, 3).result(timeout=30))
                except WorkerError:
                    continue
            assert results == [3]

    def test_killing_ends_what_runs(self) -> None:
        runner = ProcessRunner(2)
        runner.submit(int).result()
        future = runner.submit(signal.pause)
        while not future.running():
            pass
        runner.kill()
        with pytest.raises(RuntimeError, match="shut down"):
            runner.submit(int)
