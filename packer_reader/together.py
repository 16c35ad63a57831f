"""Small batches of rows: the order and the places of several are found at once, then each is copied when it is wanted.

For 64 sequences of 2,048 tokens finding them takes as long as copying them (65 us); for 64 such batches together it
takes 5 us a batch. What is copied stays one batch, since one of 1 MB is written again and again in the cache.
"""

from __future__ import annotations

import math
import os
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from packer_reader.batch import Batch, Direct
from packer_reader.errors import StoreError
from packer_reader.fill import Column, Encoded
from packer_reader.ring import SLOTS
from packer_reader.sequences import SequenceStore
from packer_reader.stores.spans import distinct
from packer_reader.tokens import Bounds, Sequences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from packer_reader.batch import BatchReader
    from packer_reader.batches import Batches
    from packer_reader.ragged import Ragged
    from packer_reader.stores.ahead import ReadAhead

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]
    Part = Callable[[int, int], Any]

__all__ = ["Near", "sent_together"]

_SENT, _SENT_BYTES = 4, 32 << 20
"""Batches that are sent at a time, and their bytes together: at most."""

_SAMPLES = 1 << 14
"""Of the batches whose places are found at once."""
_MOST = 64
_SHARDS = 32
"""Whose files are kept open for them."""
_REUSED = 2
"""Arrays that are filled again: a loop holds one batch until it has the next."""
_SMALL = 1 << 16
"""Bytes that malloc has at hand anyway."""


class Memory:
    """Memory of batches that are gone, for the next ones: the faults of fresh pages take longer than the copy.

    A tensor holds the array that it was made from, and so does whatever was made from the tensor. An array that nothing
    but this list refers to is therefore free. A forked child has its own copy of what it holds.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._arrays: list[npt.NDArray[Any]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"_arrays": []}

    def array(self, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """An array of any content that nobody holds."""
        for held in self._arrays:
            if held.shape == shape and held.dtype == dtype and getrefcount(held) == _FREE:
                return held
        found = np.empty(shape, dtype)
        if found.nbytes > _SMALL:
            self._arrays = [*self._arrays[1 - _REUSED :], found]
        return found


def _references_of_a_free_array() -> int:
    """As this Python counts them, in the way that `Memory.array` does: of the list, the loop, and the call."""
    for held in [np.empty(0)]:
        return getrefcount(held)
    raise AssertionError


_FREE = _references_of_a_free_array()


def sent_together(reader: BatchReader, batch_size: int | None, prefetch_factor: int) -> int:
    """Batches that a worker sends at a time to a `Loader`: no more than its ring has slots for, with those it fills.

    Where nothing is decoded, DataLoader's queues take as long for a batch as filling it: sequences of 2,048 tokens in
    batches of 512 come 1.4 times as fast four at a time. As int64 (8.4 MB a batch) they come 1.13 times as fast two at
    a time and 1.27 times four at a time (1.05 to 1.1 on a faster machine), for up to 134 MB in each worker's ring.
    """
    if batch_size is None or not _copied(reader):
        return 1
    size: int = sum(math.prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in reader.arrays(batch_size))
    return max(1, min(_SENT, _SENT_BYTES // max(1, size), SLOTS // (prefetch_factor + 2)))


def _copied(reader: BatchReader) -> bool:
    """Whether nothing has to be decoded."""
    return reader.view.decode == "torch" and all(isinstance(field, Column | Direct) for field in reader.filled)


class Near:
    """The next batches of a loop in this process, found together where that is worth it."""

    def __init__(self, reader: BatchReader, batch_size: int | None) -> None:
        """Take the reader, and how many samples a batch has (None: samples come one by one)."""
        worth = batch_size is not None and _copied(reader)
        self._reader, self._memory = reader, Memory()
        self._count = max(1, min(_MOST, _SAMPLES // (batch_size or 1))) if worth else 1

    def batches(self, batches: Batches, number: int, ahead: ReadAhead) -> Iterator[tuple[Batch, Bools]]:
        """Batches from one on, with which of their samples are not padding; none where they are better read one by one.

        A damaged sample ends them, so that the batch that it is in says so when its turn comes.
        """
        count = min(self._count, len(batches) - number)
        parts = batches.several(number, count) if count > 1 else []
        while len(parts) > 1 and not self._within_reach(np.concatenate([part for part, _ in parts])):
            parts = parts[: len(parts) // 2]
        if len(parts) < 2:
            return
        numbers, found, place = np.concatenate([part for part, _ in parts]), None, 0
        ahead.bring(numbers, batches.arriving(number, len(parts)))
        for part, valid in parts:
            if found is None or found.process != os.getpid():
                try:
                    found = Together(self._reader, numbers, batches.epoch, self._memory)
                except StoreError:
                    return
            yield found.batch(place, place + len(part)), valid
            place += len(part)

    def _within_reach(self, numbers: Ints) -> bool:
        """Whether samples lie in so few shards that all may be open at a time."""
        store = self._reader.store
        return isinstance(store, SequenceStore) or len(distinct(store.shards_of(numbers))) <= _SHARDS


class Together:
    """Some batches, found and not copied yet."""

    def __init__(self, reader: BatchReader, numbers: Ints, epoch: int, memory: Memory) -> None:
        """Find the samples of all of them, int64 (n,).

        Args:
            reader: of the store.
            numbers: of the samples, batch after batch.
            epoch: which.
            memory: that batches are copied to.

        Raises:
            StoreError: one is damaged.
        """
        self.process = os.getpid()
        """Addresses are those of this process: a child that was forked has to find its own."""
        self._parts: dict[str, Part] = {}
        for (name,), field in zip(reader.names, reader.filled, strict=True):
            self._parts[name] = _part(field, numbers, epoch, reader, memory)
        if reader.view.with_id:
            self._parts["id"] = lambda start, stop: torch.from_numpy(numbers[start:stop].copy())

    def batch(self, start: int, stop: int) -> Batch:
        """The samples from one place on to another."""
        return Batch({name: part(start, stop) for name, part in self._parts.items()})


def _part(field: Any, numbers: Ints, epoch: int, reader: BatchReader, memory: Memory) -> Part:
    """What gives a part of a field's values."""
    if isinstance(field, Column):
        values = reader.store.columns.numbers(field.field.name)[numbers].astype(field.dtype, copy=False)
        return lambda start, stop: torch.from_numpy(values[start:stop])
    if isinstance(field, Bounds):
        (found,) = field.fill(Encoded(numbers, [], [], epoch))
        whole: Ragged = found
        return whole.part
    shape, dtype = field.shapes[0], field.dtype
    rows = field.rows(numbers) if isinstance(field, Sequences) else None

    def copied(start: int, stop: int) -> Any:
        out = None if shape is None else memory.array((stop - start, *shape), dtype)
        if rows is not None and out is not None:
            rows.copy(start, stop, out)
        else:
            (listed,) = field.fill(Encoded(numbers[start:stop], [], [], epoch), [out])
            if listed is not None:
                return listed
        assert out is not None
        return torch.from_numpy(out)

    return copied
