"""The epoch clock: workers of one iteration agree, whoever comes first and whatever else the trainer starts."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_reader import epoch
from packer_reader.epoch import EpochClock, Position

if TYPE_CHECKING:
    from collections.abc import Iterator


class Trainer:
    """A process that starts workers, as DataLoader does, without the processes."""

    def __init__(self) -> None:
        self.clock = EpochClock()
        self.numbers = itertools.count(1)

    def workers(self, count: int, seed: int, between: int = 0) -> list[Worker]:
        """Start an iterator's workers; `between` other processes start between two of them."""
        started = []
        for worker in range(count):
            started.append(Worker(self.clock, next(self.numbers), worker, count, seed))
            for _ in range(between):
                next(self.numbers)
        return started


class Worker:
    """A worker process: the shared memory, and counters of its own."""

    def __init__(self, clock: EpochClock, number: int, worker: int, count: int, seed: int) -> None:
        self.clock = EpochClock.__new__(EpochClock)
        self.clock.__dict__.update(clock.__dict__)
        self.clock._counting = -1
        self.number = number
        self.info = SimpleNamespace(id=worker, num_workers=count, seed=seed + worker)

    def begin(self) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(epoch, "get_worker_info", lambda: self.info)
            patch.setattr(epoch, "_number", lambda: self.number)
            if self.clock._counting == -1:
                self.clock._counting, self.clock._iterations = os.getpid(), 0
            return self.clock.begin().epoch


def test_threads_that_begin_at_once_have_epochs_of_their_own() -> None:
    clock, began = EpochClock(), list[int]()
    together = threading.Barrier(4)

    def work() -> None:
        together.wait()
        for _ in range(50):
            began.append(clock.begin().epoch)

    threads = [threading.Thread(target=work) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(began) == list(range(200))


@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 1), st.integers(0, 1), st.integers(1, 3), st.randoms()), max_size=6
    )
)
def test_siblings_agree_and_iterations_count_up(loaders: list[tuple[int, int, int, int, Any]]) -> None:
    trainer, expected = Trainer(), 0
    for count, seed, between, iterations, shuffled in loaders:
        workers = trainer.workers(count, seed, between)
        for _ in range(iterations):
            shuffled.shuffle(workers)
            assert {worker.begin() for worker in workers} == {expected}
            assert trainer.clock.current().epoch == expected
            expected += 1


@given(st.integers(2, 5), st.integers(0, 50), st.randoms())
def test_with_seeds_of_their_own_anything_may_start_in_between(count: int, between: int, shuffled: Any) -> None:
    trainer = Trainer()
    for expected in range(3):
        workers = trainer.workers(count, 100 + expected, between)
        shuffled.shuffle(workers)
        assert {worker.begin() for worker in workers} == {expected}


def test_two_iterators_at_once_do_not_mix() -> None:
    trainer = Trainer()
    one, other = trainer.workers(3, 111), trainer.workers(3, 222)
    order: Iterator[tuple[str, Worker]] = iter(
        [
            ("one", one[0]),
            ("other", other[2]),
            ("one", one[2]),
            ("other", other[0]),
            ("other", other[1]),
            ("one", one[1]),
        ]
    )
    found: dict[str, set[int]] = {}
    for name, worker in order:
        found.setdefault(name, set()).add(worker.begin())
    assert found == {"one": {0}, "other": {1}}


def test_a_sibling_that_has_ended_is_still_followed() -> None:
    trainer = Trainer()
    first, late = trainer.workers(2, 5)
    assert first.begin() == 0
    del first
    assert late.begin() == 0


def test_an_iteration_that_was_left_at_once_counts() -> None:
    trainer = Trainer()
    trainer.workers(2, 5)[0].begin()
    assert {worker.begin() for worker in trainer.workers(2, 5)} == {1}


def test_a_forced_position_is_taken_once() -> None:
    clock = EpochClock()
    clock.force(Position(5, 30))
    assert clock.current() == clock.next() == Position(5, 30)
    assert clock.begin() == Position(5, 30)
    assert clock.begin() == Position(6, 0)
    clock.force(Position(2))
    assert [clock.begin().epoch for _ in range(2)] == [2, 3]


def test_workers_added_later_join_the_count() -> None:
    trainer = Trainer()
    trainer.clock.force(Position(10))
    assert [worker.begin() for worker in trainer.workers(1, 1)] == [10]
    assert [worker.begin() for worker in reversed(trainer.workers(3, 2))] == [11] * 3


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda clock: pickle.loads(pickle.dumps(clock))])
def test_a_copy_counts_on_by_itself(clone: Any) -> None:
    clock = EpochClock()
    clock.begin()
    other = clone(clock)
    assert [other.begin().epoch, other.begin().epoch, clock.begin().epoch] == [1, 2, 1]
    assert other._shared.is_shared()


def test_another_trainer_has_a_clock_of_its_own() -> None:
    clock = EpochClock()
    clock.force(Position(3))
    clock._owner = -1
    assert clock.begin() == Position(3)
    assert clock._owner == os.getpid()
