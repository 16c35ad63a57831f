"""Each rule of reading accepts what follows it, and finds what does not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.corpus.orders import Batch, Rank, within
from tests.corpus.rules import QUESTIONS, TAILS, each_once


def ranks(*epochs_of_ranks: list[list[list[int]]], valid: int = 10**6) -> list[Rank]:
    """Ranks from their epochs, each a list of batches of ids; at most `valid` samples of a batch count."""

    def batch(ids: list[int]) -> Batch:
        return Batch(tuple(ids), tuple(ids), tuple(place < valid for place in range(len(ids))))

    return [Rank([[batch(ids) for ids in epoch] for epoch in epochs]) for epochs in epochs_of_ranks]


@pytest.mark.parametrize("wrong", [[[0, 1], [2, 2]], [[0, 1], [2]], [[0, 1], [2, 3], [4]]])
def test_each_once(wrong: list[list[int]]) -> None:
    assert each_once(ranks([[[0, 1]]], [[[3], [2]]]), 4) == []
    assert each_once(ranks([[[0, 1], [2, 3]], wrong]), 4) != []


@pytest.mark.parametrize(("total", "wrong"), [(5, [[0, 1], [2, 2]]), (5, [[0, 1], [2]]), (7, [[0, 1], [2, 3]])])
def test_dropped(total: int, wrong: list[list[int]]) -> None:
    assert TAILS["drop_last"](ranks([[[0, 1]]], [[[2, 3]]]), 7) == []
    assert TAILS["drop_last"](ranks([[]]), 0) == []
    assert TAILS["drop_last"](ranks([wrong]), total) != []


def test_padded() -> None:
    assert TAILS["pad"](ranks([[[0, 7]]], [[[1, 7]]], valid=1), 2) == []
    assert TAILS["pad"](ranks([[[0, 1]]], [[[1, 0]]]), 2) != []
    assert TAILS["pad"](ranks([[[0, 1], [2]]]), 3) != []


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("equal_batches", ([[[0], [1]]], [[[2], [3]]]), ([[[0], [1]]], [[[2, 3]]])),
        ("batches", ([[[0], [1]]],), ([[[0, 1]]],)),
        ("epochs_differ", ([[[0], [1]], [[1], [0]]],), ([[[0], [1]], [[0], [1]]],)),
    ],
)
def test_questions(key: str, right: Any, wrong: Any) -> None:
    step = {key: 2 if key == "batches" else True}
    assert QUESTIONS[key](step, ranks(*right)) == []
    assert QUESTIONS[key](step, ranks(*wrong)) != []


@pytest.mark.parametrize(("second", "unique"), [(0.5, False), (0.7, True)])
def test_draws_of_two_workers(second: float, unique: bool) -> None:
    drawn = [(0, 0.5), (1, second), (0, 0.1), (1, 0.1)]
    epoch = [Batch((n,), (n,), (True,), worker, value) for n, (worker, value) in enumerate(drawn)]
    assert (QUESTIONS["probe_unique"]({}, [Rank([epoch])]) == []) == unique


def test_a_reader_that_hangs_is_stopped() -> None:
    def hang() -> None:
        while True:
            pass

    with pytest.raises(TimeoutError), within(0.01):
        hang()
