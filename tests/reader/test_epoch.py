"""The epoch clock: workers of one iteration agree, whoever comes first and in whatever order they look."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_reader import epoch
from packer_reader.epoch import EpochClock, Position


def begin(clock: EpochClock, worker: int, workers: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> int:
    info = SimpleNamespace(id=worker, num_workers=workers, seed=seed + worker)
    monkeypatch.setattr(epoch, "get_worker_info", lambda: info)
    return clock.begin().epoch


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 1), st.randoms(use_true_random=False)), max_size=6))
def test_siblings_agree_and_iterations_count_up(iterations: list[tuple[int, int, Any]]) -> None:
    clock = EpochClock()
    with pytest.MonkeyPatch.context() as patch:
        for number, (workers, seed, shuffled) in enumerate(iterations):
            order = list(range(workers))
            shuffled.shuffle(order)
            assert {begin(clock, worker, workers, seed, patch) for worker in order} == {number}
            assert clock.current().epoch == number


def test_a_forced_position_is_taken_once() -> None:
    clock = EpochClock()
    clock.force(Position(5, 30))
    assert clock.current() == Position(5, 30)
    assert clock.begin() == Position(5, 30)
    assert clock.begin() == Position(6, 0)
    clock.force(Position(2))
    assert [clock.begin().epoch for _ in range(2)] == [2, 3]


def test_workers_added_later_join_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = EpochClock()
    clock.force(Position(10))
    assert begin(clock, 0, 1, 1, monkeypatch) == 10
    assert [begin(clock, worker, 3, 2, monkeypatch) for worker in (2, 0, 1)] == [11] * 3
