"""Rules that the batches of all ranks must follow. Pure."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.corpus.orders import Batch, Rank

__all__ = ["QUESTIONS", "TAILS", "each_once"]

Step = dict[str, Any]


def _epochs(ranks: list[Rank]) -> list[list[Batch]]:
    """The batches of all ranks, by epoch."""
    return [[batch for rank in ranks for batch in rank.epochs[n]] for n in range(len(ranks[0].epochs))]


def each_once(ranks: list[Rank], total: int) -> list[str]:
    """Every sample exactly once per epoch over all ranks; padding does not count."""
    problems = []
    for number, batches in enumerate(_epochs(ranks)):
        counts = Counter(i for batch in batches for i, valid in zip(batch.ids, batch.valid, strict=True) if valid)
        if counts != Counter(range(total)):
            problems.append(f"epoch {number} is not each of {total} samples once: {sorted(counts.items())}")
    return problems


def padded(ranks: list[Rank], total: int) -> list[str]:
    """Every sample once, and all batches full."""
    sizes = {len(batch.ids) for batches in _epochs(ranks) for batch in batches}
    return each_once(ranks, total) + ([] if len(sizes) == 1 else [f"padded batches have sizes {sizes}"])


def dropped(ranks: list[Rank], total: int) -> list[str]:
    """No sample twice, all batches full, and fewer left out than a global batch has."""
    problems = []
    for number, batches in enumerate(_epochs(ranks)):
        ids = [i for batch in batches for i in batch.ids]
        size = max((len(batch.ids) for batch in batches), default=1)
        full = all(len(batch.ids) == size for batch in batches) and total - len(ids) < size * len(ranks)
        if len(set(ids)) != len(ids) or not full:
            problems.append(f"epoch {number} of {total} samples with drop_last: {[batch.ids for batch in batches]}")
    return problems


def _equal_batches(_: Step, ranks: list[Rank]) -> list[str]:
    counts = [[len(epoch) for epoch in rank.epochs] for rank in ranks]
    return [] if all(count == counts[0] for count in counts) else [f"ranks have {counts} batches"]


def _batches(step: Step, ranks: list[Rank]) -> list[str]:
    counts = [len(epoch) for rank in ranks for epoch in rank.epochs]
    return [] if set(counts) == {step["batches"]} else [f"{counts} batches, not {step['batches']}"]


def _epochs_differ(_: Step, ranks: list[Rank]) -> list[str]:
    orders = [[batch.ids for batch in batches] for batches in _epochs(ranks)]
    return ["two epochs have one order" for one, other in combinations(orders, 2) if one == other]


def _probe_unique(_: Step, ranks: list[Rank]) -> list[str]:
    first: dict[tuple[int, int, int], float] = {}
    for rank, taken_by in enumerate(ranks):
        for epoch, batches in enumerate(taken_by.epochs):
            for batch in batches:
                first.setdefault((rank, epoch, batch.worker), batch.probe)
    return [] if len(set(first.values())) == len(first) else [f"first draws are {first}"]


QUESTIONS: dict[str, Callable[[Step, list[Rank]], list[str]]] = {
    "equal_batches": _equal_batches,
    "batches": _batches,
    "epochs_differ": _epochs_differ,
    "probe_unique": _probe_unique,
}
"""Keys of a read step that ask something of the batches."""
TAILS: dict[str, Callable[[list[Rank], int], list[str]]] = {"drop_last": dropped, "pad": padded}
"""What may become of a last batch that is not full, with the rule that is documented for it."""
