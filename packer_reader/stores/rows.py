"""Rows of blocks, gathered straight from the mapped files: no object per sample, no copy but the one that is wanted.

Like other raw arrays they are not compared with their CRC-32 as they are read, which would take longer than reading
them; `packer verify --full` does that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packer_reader.stores.base import Store

__all__ = ["gather", "gather_ragged", "places_of"]

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


def gather(store: Store, numbers: Ints, field: int, dtype: str, out: Array) -> None:
    """Rows of one length.

    Args:
        store: whose records are blocks.
        numbers: sample numbers, int64 (n,), in range.
        field: place in the manifest's fields.
        dtype: of the stored values.
        out: (n, length), of that dtype or a wider one.

    Raises:
        StoreError: a row is damaged, or a shard cannot be read.
    """
    size = out.shape[1] * np.dtype(dtype).itemsize
    for here, memory, starts, sizes in places_of(store, numbers, field):
        if bool((sizes != size).any()):
            wrong = numbers[here][sizes != size]
            raise store.damaged(int(wrong[0]), "its row has another length than the manifest says")
        out[here] = _windows(memory, starts, size, np.dtype(dtype))


def gather_ragged(store: Store, numbers: Ints, field: int, dtype: str) -> tuple[Array, Ints]:
    """Rows of any lengths: all values, and where each row's begin, int64 (n + 1,).

    Raises:
        StoreError: a shard cannot be read.
    """
    kind = np.dtype(dtype)
    found = list(places_of(store, numbers, field))
    counts = np.empty(len(numbers), np.int64)
    for here, _, _, sizes in found:
        counts[here] = sizes // kind.itemsize
    offsets = np.concatenate([[0], np.cumsum(counts)])
    values = np.empty(int(offsets[-1]), kind)
    for here, memory, starts, _ in found:
        own = counts[here]
        steps = np.arange(int(own.sum())) - np.repeat(np.cumsum(own) - own, own)
        wanted = np.repeat(starts, own) + steps * kind.itemsize
        values[np.repeat(offsets[:-1][here], own) + steps] = _windows(memory, wanted, kind.itemsize, kind)[:, 0]
    return values, offsets


def places_of(store: Store, numbers: Ints, field: int) -> Iterator[tuple[Any, Array, Ints, Ints]]:
    """By shard: which of the samples, memory, and where in it their rows begin and how large they are, in bytes."""
    shards = store.shards_of(numbers)
    first = int(shards[0]) if len(shards) else 0
    used = [first] if bool((shards == first).all()) else np.unique(shards).tolist()
    for shard in used:
        here = slice(None) if len(used) == 1 else np.flatnonzero(shards == shard)
        index, rows = store.index(shard), numbers[here] - store.first(shard)
        memory, bases = store.memory(shard, rows)
        yield here, memory, index.offset[field][rows].astype(np.int64) + bases, index.size[field][rows].astype(np.int64)


def _windows(memory: Array, starts: Ints, size: int, dtype: np.dtype[Any]) -> Array:
    """What stands at some places of memory, each of `size` bytes: (n, size / itemsize), copied.

    Whole values are copied at once where all lie at multiples of their size, as in tar shards: a quarter faster.
    """
    step = dtype.itemsize
    address = memory.__array_interface__["data"][0]
    if address % step == 0 and not bool((starts % step).any()):
        cells = memory[: len(memory) // step * step].view(dtype)
        shape = (len(cells) - size // step + 1, size // step)
        windows: Array = as_strided(cells, shape, (step, step), writeable=False)
        return np.asarray(windows[starts // step])
    windows = as_strided(memory, (len(memory) - size + 1, size), (1, 1), writeable=False)
    return np.asarray(windows[starts]).view(dtype)
