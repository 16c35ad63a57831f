"""Rows of blocks, gathered straight from the mapped files: no object per sample, no copy but the one that is wanted.

Like other raw arrays they are not compared with their CRC-32 as they are read, which would take longer than reading
them; `packer verify --full` does that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer_reader.stores.spans import distinct

if TYPE_CHECKING:
    from packer_reader.stores.base import Store

__all__ = ["Rows", "gather_ragged", "memory_at", "placed"]

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

_TOGETHER = 1 << 17
"""Bytes of rows that are copied at a time: numpy gathers them into memory of its own before it widens them, and as much
as stays in the cache makes large batches up to a tenth faster than all of it at once."""


class Rows:
    """Rows of one length, found and not copied yet."""

    def __init__(self, store: Store, numbers: Ints, field: int, dtype: str, length: int) -> None:
        """Find them.

        Args:
            store: whose records are blocks.
            numbers: sample numbers, int64 (n,), in range.
            field: place in the manifest's fields.
            dtype: of the stored values.
            length: of each row, in values.

        Raises:
            StoreError: a row is damaged, or a shard cannot be read.
        """
        size = length * np.dtype(dtype).itemsize
        addresses, sizes, self._held = placed(store, numbers, field)
        if bool((sizes != size).any()):
            wrong = int(numbers[sizes != size][0])
            raise store.damaged(wrong, "its row has another length than the manifest says")
        self._rows, self._places = _windows(addresses, size)
        self._dtype = np.dtype(dtype)
        self._step = max(1, _TOGETHER // max(1, size))

    def copy(self, start: int, stop: int, out: Array) -> None:
        """Copy some of them into (stop - start, length), of the stored dtype or a wider one."""
        for first in range(start, stop, self._step):
            last = min(first + self._step, stop)
            rows = self._rows[self._places[first:last]].view(self._dtype)
            out[first - start : last - start] = rows.reshape(last - first, *out.shape[1:])


def gather_ragged(store: Store, numbers: Ints, field: int, dtype: str) -> tuple[Array, Ints]:
    """Rows of any lengths: all values, and where each row's begin, int64 (n + 1,).

    Raises:
        StoreError: a shard cannot be read.
    """
    kind = np.dtype(dtype)
    addresses, sizes, held = placed(store, numbers, field)
    counts = sizes // kind.itemsize
    offsets = np.concatenate([[0], np.cumsum(counts)])
    steps = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], counts)
    cells, places = _windows(np.repeat(addresses, counts) + steps * kind.itemsize, kind.itemsize)
    values: Array = cells[places].view(kind)
    del held
    return values, offsets


def placed(store: Store, numbers: Ints, field: int) -> tuple[Ints, Ints, list[Any]]:
    """Where in this process's memory a field of some samples lies, and its bytes, int64 (n,) each.

    Returns:
        Addresses, sizes, and what keeps the memory mapped while it is held.

    Raises:
        StoreError: a shard cannot be read, or an index leads out of it.
    """
    shards = store.shards_of(numbers)
    first = int(shards[0]) if len(shards) else 0
    used = [first] if bool((shards == first).all()) else distinct(shards).tolist()
    addresses, sizes, held = np.empty_like(numbers), np.empty_like(numbers), list[Any]()
    for shard in used:
        here: Any = slice(None) if len(used) == 1 else np.flatnonzero(shards == shard)
        index, rows = store.index(shard), numbers[here] - store.first(shard)
        holder, bases, limits = store.addresses(shard, rows)
        held.append(holder)
        offsets, size = index.offset[field][rows].astype(np.int64), index.size[field][rows].astype(np.int64)
        outside = (offsets < 0) | (offsets > limits - size)
        if bool(outside.any()):  # an index that was changed behind our back must not lead anywhere else
            raise store.damaged(int(numbers[here][outside][0]), "its row lies outside of its record")
        addresses[here], sizes[here] = bases + offsets, size
    return addresses, sizes, held


class _Memory:
    """An array over memory from an address on, each item of so many bytes, the next one a step behind it."""

    def __init__(self, address: int, typestr: str, count: int, step: int) -> None:
        self.__array_interface__ = {
            "version": 3, "typestr": typestr, "shape": (count,), "strides": (step,), "data": (address, True),
        }  # fmt: skip


def memory_at(address: int, length: int, dtype: np.dtype[Any]) -> Array:
    """Values at an address, (length,), for as long as they are mapped there."""
    return np.asarray(_Memory(address, dtype.str, length, dtype.itemsize))


def _windows(addresses: Ints, size: int) -> tuple[Array, Ints]:
    """An array of which pieces can be taken at places in memory, all by one indexing.

    It spans the whole range of memory that they lie in, mapped or not: a loop over shards would scatter its results. A
    piece is one item of numpy's void type, which is copied as a whole wherever it begins.

    Args:
        addresses: of the pieces, int64 (n,).
        size: bytes of each.

    Returns:
        The array, and the pieces' places in it.
    """
    if not len(addresses):
        return np.empty(0, f"|V{size}"), addresses
    low = int(addresses.min())
    places = addresses - low
    return np.asarray(_Memory(low, f"|V{size}", int(places.max()) + 1, 1)), places
