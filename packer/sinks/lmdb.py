"""One LMDB file: the driver appends the values of finished fragments, in key order.

Rules, with their reasons in measurements of lmdb 3.0:

- no sync until the end, no writable map, no lock file: a killed build is resumed, and nothing else sees the file;
- engine format 0.9 is forced: files of 1.0 cannot be read by anything linked to liblmdb 0.9;
- the map begins small and doubles; the batch that met its end is replayed whole, since the transaction is dead;
- the result of an append is checked: out of order it returns False and raises nothing;
- transactions are cut by bytes inside a unit, so that an interrupted file goes on with the same pages.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb
import numpy as np
import numpy.typing as npt

from packer.output.journal import Journal, ShardDone
from packer.rows import joined, read_rows, shifted
from packer.sinks.cut import Cutter, ShardPlan
from packer.sinks.lmdb_pages import zero_undefined
from packer_reader.errors import OutputError
from packer_reader.format.index import index_bytes
from packer_reader.format.names import DATA_FILE, index_file
from packer_reader.format.record import key_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from packer.sinks.base import StoreTarget
    from packer.unit import SplitJob, UnitDone

__all__ = ["INDEX_RUN", "LmdbSink"]

INDEX_RUN = 1 << 16
"""Samples per index file."""
_TRANSACTION = 4 << 20
"""Bytes per transaction; uncommitted values are held on the heap."""
_FIRST_MAP = 64 << 20

Item = tuple[bytes, memoryview]


class LmdbSink:
    """The one writer of a store's data file; see `Sink`."""

    moves_data = True

    def __init__(self, target: StoreTarget) -> None:
        """Open the file, or go on with the one of an interrupted build if this machine has not restarted since."""
        self._target = target
        self._cutter = Cutter(INDEX_RUN)
        self._path = target.folder / DATA_FILE
        noted = target.job.work / "data.identity"
        if not noted.exists() or noted.read_text() != self._identity():
            # Unsynced pages may be lost or out of order after a power failure.
            self._path.unlink(missing_ok=True)
        self._env = self._open()
        self._records = 0
        """Values that the units taken have."""
        self._last = self._last_key()
        if self._last < 0:
            self._env.close()
            self._path.unlink()
            self._env = self._open()
        noted.write_text(self._identity())

    def _open(self) -> lmdb.Environment:
        # Size 0 takes the map size that the file was last committed with, which is part of its bytes.
        size = 0 if self._path.exists() else _FIRST_MAP
        options = dict.fromkeys(("sync", "metasync", "writemap", "lock"), False)
        try:
            return lmdb.open(str(self._target.folder), map_size=size, max_dbs=0, meminit=True, lib_version=0, **options)
        except lmdb.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: lmdb.Error) -> OutputError:
        """What LMDB's failure to write means; a full disk shows as several errors of the system."""
        room = os.statvfs(self._target.folder)
        full = room.f_bavail * room.f_frsize < _TRANSACTION or isinstance(error, lmdb.DiskError)
        if full or any(text in str(error) for text in ("Input/output error", "File too large", "No space")):
            return OutputError(f"no space left while writing {DATA_FILE}: make room and run the same command again")
        return OutputError(f"{DATA_FILE} cannot be written ({error}): check the disk, then run the same command again")

    def _identity(self) -> str:
        """This file, on this machine, since its last start."""
        return f"{_boot_id()} {self._path.stat().st_ino if self._path.exists() else None}"

    def _last_key(self) -> int:
        with self._env.begin() as txn, txn.cursor() as cursor:
            return int.from_bytes(cursor.key(), "big") if cursor.last() else -1

    def settled(self, journal: Journal) -> set[int]:
        """Units whose last value is in the file."""
        journal.shards.clear()
        settled, job = set(), self._target.job
        for unit, done in journal.units.items():
            if (
                not done.samples
                or int(read_rows(job.rows_path(unit), job.suffixes).arrays["value.key"][-1]) <= self._last
            ):
                settled.add(unit)
        return settled

    def take(self, done: UnitDone) -> list[ShardPlan]:
        """Append the unit's values that are not in the file yet."""
        job = self._target.job
        rows = read_rows(job.rows_path(done.unit), job.suffixes)
        keys = rows.arrays["value.key"]
        self._records += len(keys)
        if done.samples and int(keys[-1]) > self._last:
            data = memoryview(job.data_path(done.unit).read_bytes())
            ends = np.cumsum(rows.arrays["value.size"].astype(np.int64))
            starts = ends - rows.arrays["value.size"].astype(np.int64)
            items = [
                (key_bytes(key), data[start:end])
                for key, start, end in zip(keys.tolist(), starts.tolist(), ends.tolist(), strict=True)
                if key > self._last
            ]
            for batch in _batches(items):
                self._append(batch)
            self._last = int(keys[-1])
        return self._cutter.feed(done.unit, self._lengths(rows.arrays["value"]))

    def _lengths(self, values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """What each sample counts in a run of the index, from the keys of the values that they lie in."""
        text = self._target.job.recipe.text
        if text is None or text.pack == "none":
            return np.ones(len(values), np.int64)
        lengths = np.zeros(len(values), np.int64)
        _, first, samples = np.unique(values, return_index=True, return_counts=True)
        lengths[first] = samples  # no run ends within a block
        return lengths

    def _append(self, batch: list[Item]) -> None:
        self._reserve(sum(len(value) for _, value in batch))
        while True:
            try:
                with self._env.begin(write=True) as txn, txn.cursor() as cursor:
                    added = cursor.putmulti(batch, append=True, overwrite=False)[1]
                break
            except lmdb.MapFullError:
                self._env.set_mapsize(self._env.info()["map_size"] * 2)
            except lmdb.Error as error:
                raise self._failed(error) from error
        if added != len(batch):
            raise OutputError(f"{DATA_FILE}: LMDB took {added} of {len(batch)} values; please report this")

    def _reserve(self, size: int) -> None:
        """Double the map ahead of need, by a rule that an interrupted build repeats exactly."""
        info, page = self._env.info(), self._env.stat()["psize"]
        needed = (info["last_pgno"] + 1) * page + size + size // 2 + (1 << 20)
        room = info["map_size"]
        while room < needed:
            room *= 2
        if room != info["map_size"]:
            self._env.set_mapsize(room)

    def close(self) -> list[ShardPlan]:
        """The last index run."""
        return self._cutter.close()

    def finish(self) -> Mapping[str, int]:
        """Write everything out, in the one form that equal stores have, and check that it is there."""
        try:
            self._env.sync(True)
        except lmdb.Error as error:
            raise self._failed(error) from error
        records = int(self._env.stat()["entries"])
        size = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
        self._env.close()
        zero_undefined(self._path)
        if records != self._records:
            raise OutputError(f"{DATA_FILE} has {records} of {self._records} values: run again with --no-resume")
        found = self._path.stat().st_size
        if found != size:
            raise OutputError(f"{DATA_FILE} has {found} bytes instead of {size}: check the disk and run again")
        return {"records": records}

    def assemble(self) -> Callable[[SplitJob, ShardPlan], ShardDone]:
        """The task that makes one index file."""
        return _AssembleIndex(self._target.folder)


def _batches(items: list[Item]) -> Iterator[list[Item]]:
    batch, size = list[Item](), 0
    for item in items:
        batch.append(item)
        size += len(item[1])
        if size >= _TRANSACTION:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return ""


@dataclass(frozen=True)
class _AssembleIndex:
    folder: Path

    def __call__(self, job: SplitJob, plan: ShardPlan) -> ShardDone:
        parts: list[Any] = []
        for run in plan.runs:
            rows = read_rows(job.rows_path(run.unit), job.suffixes)
            parts.append(shifted(rows.index, run.first, run.stop, 0))
        data = index_bytes(joined(parts))
        (self.folder / index_file("data", plan.number)).write_bytes(data)
        return ShardDone(plan.number, plan.samples, 0, "", len(data), hashlib.sha256(data).hexdigest())
