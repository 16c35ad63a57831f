"""Where the encoded fields of samples lie: by shard and row from the index, as views of what the store has mapped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer_reader.stores.base import Ints, Store

__all__ = ["Spans", "distinct", "spans_of"]


@dataclass(frozen=True, slots=True)
class Spans:
    """Encoded fields of some samples, by field and then by sample."""

    views: list[list[memoryview]]
    crcs: list[list[int]]


def spans_of(store: Store, numbers: Ints, fields: Sequence[int]) -> Spans:
    """Encoded fields of several samples; see `Store.spans`.

    Raises:
        DamageError: a shard is gone or cut, naming it.
    """
    shards = store.shards_of(numbers)
    offsets = np.empty((3, len(fields), len(numbers)), np.int64)
    rows = np.empty(len(numbers), np.int64)
    used = distinct(shards).tolist()
    for shard in used:
        here = slice(None) if len(used) == 1 else np.flatnonzero(shards == shard)
        index, rows[here] = store.index(shard), numbers[here] - store.first(shard)
        for place, field in enumerate(fields):
            for kind, column in enumerate((index.offset, index.size, index.crc)):
                offsets[kind, place, here] = column[field][rows[here]]
    holders = store.holders(shards, rows)
    found: list[list[memoryview]] = []
    for starts, sizes in zip(*offsets[:2].tolist(), strict=True):
        views = [holder[start : start + size] for holder, start, size in zip(holders, starts, sizes, strict=True)]
        if any(len(view) != size for view, size in zip(views, sizes, strict=True)):
            cut = (n for n, v, size in zip(numbers.tolist(), views, sizes, strict=True) if len(v) != size)
            raise store.damaged(next(cut))
        found.append(views)
    return Spans(found, offsets[2].tolist())


def distinct(numbers: Ints) -> Ints:
    """Each of some numbers, (n,), once, rising.

    numpy's `unique` takes 3 to 15 times as long for 16,384 of them, and its first call loads masked arrays: 20 ms, and
    6 MB in each worker.
    """
    found = np.sort(numbers)
    new = np.ones(len(found), np.bool_)
    np.not_equal(found[1:], found[:-1], out=new[1:])
    return found[new]
