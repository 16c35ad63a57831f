"""Documents laid together in the stored order, where reading them at places of one's choice is slow.

A shuffled order costs a seek for each document: on a spinning disk a hundred a second. Here the source is read once,
from end to end. Each document goes to the bucket of its place in the order; then one bucket after the other is sorted
in memory and written behind the last. Workers find the documents of a unit side by side. All of the text is written
twice and read twice more, always in order, and memory does not depend on its size. Nothing of this shows in the store.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from packer.plan import Plan
from packer.sources.refs import KEPT, SPOOL, RefTable, open_rows
from packer_reader.errors import OutputError
from packer_reader.machine import seeks_are_slow, usable_memory
from packer_reader.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from packer.job import Job
    from packer.recipe import Recipe
    from packer.sources.text import Documents
    from packer.split import Split

__all__ = ["gather", "gathers"]

Ints = npt.NDArray[np.int64]

_BUCKET = 64 << 20
"""Bytes that a bucket should have: it is sorted in memory."""
_MOST = 4096
_BUFFERS = 64 << 20
"""Bytes held for all buckets together, and at least `_LEAST` for each."""
_LEAST = 1 << 16
_CHUNK = 1 << 14
"""Refs looked at together."""
_HEAD = struct.Struct("<QQQ")
"""Before a document in its bucket: its place in the order, its ref, and its bytes."""


def gathers(job: Job, source: Documents, folder: Path, size: int) -> bool:
    """Whether the documents of a source are worth laying together.

    Args:
        job: that may say so.
        source: of the documents.
        folder: of the refs, and of what was unpacked.
        size: bytes of all documents.
    """
    if job.gather is not None:
        return job.gather
    if size < usable_memory() // 2:  # it stays in memory, once it has been read
        return False
    places = [*map(Path, source.roots), *([folder] if source.unpacked else [])]
    return any(map(seeks_are_slow, places))


def gather(job: Job, source: Documents, folder: Path, splits: Sequence[Split], recipe: Recipe) -> Documents:
    """Lay all documents together in the stored order, and let the refs say where they lie.

    Args:
        job: its watcher hears how it goes.
        source: of the documents.
        folder: of the refs.
        splits: of the source.
        recipe: whose order it is.

    Returns:
        The source as workers get it.

    Raises:
        OutputError: there is not enough room.
    """
    table = RefTable(folder)
    size = int(table.sizes.sum())
    _check_room(folder, size)
    count = max(1, min(_MOST, -(-size // _BUCKET)))
    buckets = _Buckets(folder, count, max(_LEAST, _BUFFERS // count))
    job.watcher.begin("gathering", len(table))
    total = sum(split.count for split in splits)
    for first in range(0, len(table), _CHUNK):
        numbers = np.arange(first, min(first + _CHUNK, len(table)))
        places = _places(numbers, splits, recipe)
        for ref, place, data in zip(numbers.tolist(), places.tolist(), source.stored(table.some(numbers)), strict=True):
            if data is not None and place >= 0:  # what cannot be read stays, and whoever converts it says why
                buckets.add(place * count // total, _HEAD.pack(place, ref, len(data)) + data)
        job.watcher.advance(len(numbers), 0, 0)
    laid = folder / f"{SPOOL}.laid"
    with laid.open("wb") as file, open_rows(folder) as rows:
        end = 0
        for bucket in buckets.ended():
            for _, ref, data in sorted(_documents(bucket)):
                rows["offset"][ref], rows["crc"][ref] = end, KEPT
                end += file.write(data)
    laid.replace(folder / SPOOL)
    return source.spooled_at(folder / SPOOL)


def _places(numbers: Ints, splits: Sequence[Split], recipe: Recipe) -> Ints:
    """Places in the order of all splits, one behind the other; -1 for a ref of none."""
    places, before = np.full(len(numbers), -1, np.int64), 0
    for split in splits:
        plan = Plan(split.count, recipe.seed, recipe.unit, recipe.shuffle)
        if split.members is None:
            return plan.places(numbers)
        members = split.members
        at = np.searchsorted(members, numbers.astype(np.uint64)).clip(max=len(members) - 1)
        mine = members[at] == numbers.astype(np.uint64)
        places[mine] = before + plan.places(at[mine])
        before += split.count
    return places


class _Buckets:
    """Files that are written side by side."""

    def __init__(self, folder: Path, count: int, held: int) -> None:
        self._folder, self._count, self._most = folder / "buckets", count, held
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        self._held: dict[int, list[bytes]] = {}
        self._sizes: Counter[int] = Counter()

    def add(self, number: int, data: bytes) -> None:
        self._held.setdefault(number, []).append(data)
        self._sizes[number] += len(data)
        if self._sizes[number] >= self._most:
            self._write(number)

    def _write(self, number: int) -> None:
        with (self._folder / str(number)).open("ab") as file:  # so many open files are not everywhere allowed
            file.write(b"".join(self._held.pop(number, ())))
        del self._sizes[number]

    def ended(self) -> Iterator[bytes]:
        """Their contents, in order; each file goes once it is read."""
        for number in sorted(self._held):
            self._write(number)
        for number in range(self._count):
            path = self._folder / str(number)
            if path.exists():
                data = path.read_bytes()
                path.unlink()
                yield data
        self._folder.rmdir()


def _documents(bucket: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Place, ref and bytes of each document of a bucket."""
    start = 0
    while start < len(bucket):
        place, ref, size = _HEAD.unpack_from(bucket, start)
        start += _HEAD.size + size
        yield place, ref, bucket[start - size : start]


def _check_room(folder: Path, size: int) -> None:
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if 2 * size > free:
        raise OutputError(
            f"about {format_bytes(2 * size)} are needed to lay the documents together in {str(folder)!r}, and "
            f"{format_bytes(free)} are free: make room, or give --no-gather, which seeks each document where it lies"
        )
