"""Tar shards: cut by exact sizes, assembled by copying byte ranges of fragments."""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from packer.output.journal import Journal, ShardDone
from packer.rows import UnitRows, joined, read_rows, shifted
from packer.sinks.cut import Cutter, ShardPlan
from packer_reader.format.index import Index, index_bytes
from packer_reader.format.names import index_file, shard_file
from packer_reader.format.tar import END

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy.typing as npt

    from packer.sinks.base import StoreTarget
    from packer.unit import SplitJob, UnitDone

__all__ = ["TarSink", "assemble_shard"]

_COPY = 1 << 19
"""Bytes copied at a time."""


class TarSink:
    """Cuts shards as units come in; see `Sink`."""

    moves_data = False

    def __init__(self, target: StoreTarget) -> None:
        """Begin with no unit taken."""
        self._target = target
        self._cutter = self._fresh()

    def _fresh(self) -> Cutter:
        return Cutter(self._target.job.recipe.shard_bytes - len(END))

    def settled(self, journal: Journal) -> set[int]:
        """Units whose samples all lie in finished shards; shards that are not as noted are forgotten."""
        for number, shard in list(journal.shards.items()):
            if not _as_noted(self._target, shard):
                del journal.shards[number]
        cutter, left, settled = self._fresh(), dict[int, int](), set[int]()
        units = self._target.job.plan.units
        for unit in range(units):
            if unit not in journal.units:
                break
            lengths = self._lengths(unit)
            left[unit] = len(lengths)
            plans = cutter.feed(unit, lengths)
            if unit == units - 1:
                plans += cutter.close()
            for plan in plans:
                if plan.number in journal.shards:
                    for run in plan.runs:
                        left[run.unit] -= run.stop - run.first
            settled |= {u for u, samples in left.items() if samples == 0}
            left = {u: samples for u, samples in left.items() if samples}
        return settled

    def take(self, done: UnitDone) -> list[ShardPlan]:
        """Cut at the unit's samples."""
        return self._cutter.feed(done.unit, self._lengths(done.unit))

    def _lengths(self, unit: int) -> npt.NDArray[Any]:
        job = self._target.job
        return read_rows(job.rows_path(unit), job.suffixes).arrays["length"]

    def close(self) -> list[ShardPlan]:
        """The last shard, full or not."""
        return self._cutter.close()

    def finish(self) -> Mapping[str, int]:
        """Nothing is left to do."""
        return {"oversized": self._cutter.oversized}

    def assemble(self) -> Callable[[SplitJob, ShardPlan], ShardDone]:
        """The task that makes one shard."""
        return _AssembleTar(self._target.folder, self._target.prefix)


def _as_noted(target: StoreTarget, shard: ShardDone) -> bool:
    """Whether a finished shard still holds the bytes that were hashed: nothing has been synced yet."""
    try:
        for name, sha256 in ((shard_file, shard.sha256), (index_file, shard.index_sha256)):
            with (target.folder / name(target.prefix, shard.number)).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    return False
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class _AssembleTar:
    folder: Path
    prefix: str

    def __call__(self, job: SplitJob, plan: ShardPlan) -> ShardDone:
        return assemble_shard(job, plan, self.folder, self.prefix)


def assemble_shard(job: SplitJob, plan: ShardPlan, folder: Path, prefix: str) -> ShardDone:
    """Write one shard and its index from fragments.

    Raises:
        OSError: the disk is full, or a fragment cannot be read.
    """
    path = folder / shard_file(prefix, plan.number)
    partial = job.work / f"{path.name}.{os.getpid()}"
    digest, place, parts = hashlib.sha256(), 0, list[Index]()
    try:
        with partial.open("wb") as out:
            for run in plan.runs:
                rows = read_rows(job.rows_path(run.unit), job.suffixes)
                start, stop = _byte_range(rows, run.first, run.stop)
                parts.append(shifted(rows.index, run.first, run.stop, place - start))
                place += _copy(job.data_path(run.unit), start, stop, out, digest)
            digest.update(END)
            out.write(END)
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    index = index_bytes(joined(parts))
    (folder / index_file(prefix, plan.number)).write_bytes(index)
    return ShardDone(
        plan.number, plan.samples, place + len(END), digest.hexdigest(), len(index), hashlib.sha256(index).hexdigest()
    )


def _copy(path: Path, start: int, stop: int, out: BinaryIO, digest: Any) -> int:
    """Append bytes of a fragment to a shard and hash them in passing, a piece at a time that stays in the cache."""
    with path.open("rb", buffering=0) as fragment:
        fragment.seek(start)
        for place in range(start, stop, _COPY):
            piece = memoryview(_buffer())[: min(_COPY, stop - place)]
            if fragment.readinto(piece) != len(piece):
                raise OSError(errno.EIO, "a fragment was cut short", str(path))
            digest.update(piece)
            out.write(piece)
    return stop - start


@lru_cache(maxsize=1)
def _buffer() -> bytearray:
    return bytearray(_COPY)


def _byte_range(rows: UnitRows, first: int, stop: int) -> tuple[int, int]:
    ends = np.cumsum(rows.arrays["length"].astype(np.int64))
    return (int(ends[first - 1]) if first else 0), int(ends[stop - 1])
