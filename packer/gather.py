"""Documents laid together in the stored order, where reading them at places of one's choice is slow.

A shuffled order costs a seek for each document: on a spinning disk a hundred a second. Here the source is read once,
from end to end. Each document goes to the bucket of its place in the order; then one bucket after the other is sorted
in memory and written behind the last. Workers find the documents of a unit side by side. All of the text is written
twice and read twice more, always in order; on the disk it lies once and a bucket, since buckets go as they are sorted.
Memory is that of a bucket and of all buffers, 64 MB each up to 256 GB of text. Nothing of this shows in the store.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from dataclasses import dataclass
from operator import itemgetter
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
"""Buckets; of more text they are larger."""
_BUFFERS = 64 << 20
"""Bytes held for all buckets together, and at least `_LEAST` for each."""
_LEAST = 1 << 16
_CHUNK = 1 << 14
"""Refs looked at together."""
_HEAD = struct.Struct("<QQQ")
"""Before a document in its bucket: its place in the order, its ref, and its bytes."""


def gathers(job: Job, source: Documents, folder: Path, size: int, recipe: Recipe) -> bool:
    """Whether the documents of a source are worth laying together.

    Args:
        job: that may say so.
        source: of the documents.
        folder: of the refs, and of what was unpacked.
        size: bytes of all documents.
        recipe: whose order it is; unshuffled they are read one behind the other anyway.
    """
    if not recipe.shuffle:
        return False
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
        OSError: what was unpacked cannot be read.
    """
    table = RefTable(folder)
    _check_room(folder, int(table.sizes.sum()), len(table))
    parts = _parts(table, splits, recipe)
    count = sum(part.buckets for part in parts)
    buckets = _Buckets(folder, count, max(_LEAST, _BUFFERS // count))
    job.watcher.begin("gathering", len(table))
    for first in range(0, len(table), _CHUNK):
        numbers = np.arange(first, min(first + _CHUNK, len(table)))
        places, chosen = _places(numbers, parts)
        documents = source.stored(table.some(numbers))
        for ref, place, bucket, data in zip(numbers.tolist(), places, chosen, documents, strict=True):
            if data is not None:  # what cannot be read stays, and whoever converts it says why
                buckets.add(bucket, _HEAD.pack(place, ref, len(data)) + data)
        job.watcher.advance(len(numbers), 0, 0)
    laid = folder / f"{SPOOL}.laid"
    with laid.open("wb") as file, open_rows(folder) as rows:
        offsets, marks, end = np.asarray(rows["offset"]), np.asarray(rows["crc"]), 0
        for content in buckets.ended():
            for _, ref, document in sorted(_documents(memoryview(content)), key=itemgetter(0)):
                offsets[ref], marks[ref] = end, KEPT
                end += file.write(document)
    laid.replace(folder / SPOOL)
    return source.spooled_at(folder / SPOOL)


@dataclass(frozen=True)
class _Part:
    """A split in the order of all."""

    plan: Plan
    members: npt.NDArray[np.uint64] | None
    """Numbers of its refs, ascending; None means all."""
    first: int
    """Its first bucket."""
    buckets: int


def _parts(table: RefTable, splits: Sequence[Split], recipe: Recipe) -> list[_Part]:
    """The splits, each with buckets for its own bytes: documents of one may be much larger than those of another."""
    total, parts, first = int(table.sizes.sum()), list[_Part](), 0
    size = max(_BUCKET, total // _MOST)
    for split in splits:
        held = total if split.members is None else int(table.sizes[split.members].sum())
        plan = Plan(split.count, recipe.seed, recipe.unit)
        parts.append(_Part(plan, split.members, first, max(1, -(-held // size))))
        first += parts[-1].buckets
    return parts


def _places(numbers: Ints, parts: Sequence[_Part]) -> tuple[list[int], list[int]]:
    """Of refs their places in the order of their split, and their buckets."""
    places, buckets = np.zeros_like(numbers), np.zeros_like(numbers)
    for part in parts:
        mine, at = np.ones(len(numbers), np.bool_), numbers
        if part.members is not None:
            at = np.searchsorted(part.members, numbers.astype(np.uint64)).clip(max=len(part.members) - 1)
            mine = part.members[at] == numbers.astype(np.uint64)
        places[mine] = part.plan.places(at[mine])
        buckets[mine] = part.first + places[mine] * part.buckets // part.plan.count
    return places.tolist(), buckets.tolist()


class _Buckets:
    """Files that are written side by side."""

    def __init__(self, folder: Path, count: int, held: int) -> None:
        self._folder, self._count, self._most = folder / "buckets", count, held
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


def _documents(bucket: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Place, ref and bytes of each document of a bucket."""
    start = 0
    while start < len(bucket):
        place, ref, size = _HEAD.unpack_from(bucket, start)
        start += _HEAD.size + size
        yield place, ref, bucket[start - size : start]


def _check_room(folder: Path, size: int, documents: int) -> None:
    room = os.statvfs(folder)
    free, need = room.f_bavail * room.f_frsize, size + _HEAD.size * documents + _BUCKET
    if need > free:
        raise OutputError(
            f"about {format_bytes(need)} are needed to lay the documents together in {str(folder)!r}, and "
            f"{format_bytes(free)} are free: make room, or give --no-gather, which seeks each document where it lies"
        )
