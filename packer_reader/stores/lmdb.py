"""LMDB: one environment per file and process, opened when first read.

lmdb >= 2 refuses to open a file twice in a process, and a forked child inherits that registry with handles it may not
use; so handles live here, by file identity, and a child begins by closing what it inherited.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lmdb
import numpy as np

from packer_reader.errors import DamageError
from packer_reader.format.names import DATA_FILE, index_file
from packer_reader.locks import ThreadLock
from packer_reader.stores.ahead import address_of
from packer_reader.stores.base import Store
from packer_reader.stores.files import Recent, check_size
from packer_reader.stores.spans import distinct

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from packer_reader.format.manifest import Manifest
    from packer_reader.stores.base import Ints

__all__ = ["LmdbStore", "transaction"]

_OPEN: dict[tuple[int, int], tuple[lmdb.Environment, lmdb.Transaction]] = {}
"""This process's handles by device and inode."""
_LOCK = ThreadLock()


def _drop_inherited() -> None:
    for env, _ in _OPEN.values():
        env.close()
    _OPEN.clear()


def _before_fork() -> None:
    """No fork while a thread reads: closing its handle in the child would wait for a thread that is not there."""
    _LOCK.acquire()


os.register_at_fork(before=_before_fork, after_in_parent=_LOCK.release, after_in_child=_drop_inherited)


def transaction(folder: Path, size: int | None) -> lmdb.Transaction:
    """The process's one read transaction on a store's data file; the file never changes, so it lasts.

    Args:
        folder: the store.
        size: the data file's listed size in bytes.

    Raises:
        StoreError: the file is missing or unreadable, has another size, or is no LMDB file.
    """
    path = folder / DATA_FILE
    check_size(path, size)
    with _LOCK:
        found = path.stat()
        identity = (found.st_dev, found.st_ino)
        if identity not in _OPEN:
            try:
                env = lmdb.open(str(folder), readonly=True, lock=False, create=False, max_dbs=0, readahead=False)
                _OPEN[identity] = (env, env.begin(buffers=True))
            except lmdb.Error as error:
                raise DamageError(
                    f"{str(path)!r} cannot be opened ({error}): close handles of your own on it in this process, or "
                    "copy it again"
                ) from error
        return _OPEN[identity][1]


@dataclass(frozen=True, slots=True)
class _Records:
    """The records of an index run and where they lie in memory: looked up once, since the file never changes."""

    keys: npt.NDArray[np.uint64]
    """Rising, (r,)."""
    rows: Ints
    """The first sample of each, by its row."""
    addresses: Ints
    """0 for those that were not looked up yet."""
    sizes: Ints
    """In bytes."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """The file in one process."""

    process: int
    transaction: Any
    records: Recent[_Records]
    """By index run."""
    known: dict[int, Ints]
    """By index run the addresses of the records of some samples; 0 for those that were not looked up yet."""


_PAGE, _PAGE_HEADER = 4096, 16
"""Bytes of LMDB's pages, and of what precedes a record on its first one."""
_STRETCH = 1024
"""Samples of which one is looked up: of the others 1 in 100 is placed over two pages off."""


class LmdbStore(Store):
    """A store in one LMDB file."""

    slack = 2 * _PAGE

    def __init__(self, path: Path, manifest: Manifest, identity: tuple[int, int] | None = None) -> None:
        """Take a complete store's folder and its parsed manifest; see `Store`."""
        super().__init__(path, manifest, identity)
        self._size = int(manifest.files[DATA_FILE]["bytes"]) if DATA_FILE in manifest.files else None
        self._opened = _Opened(-1, None, Recent(self._records), {})

    @property
    def container_sizes(self) -> Ints:
        """One container: the file is in key order from end to end."""
        return np.array([len(self)], np.int64)

    def holders(self, shards: Ints, rows: Ints) -> list[memoryview]:
        """The values that hold the samples.

        All of a batch's look-ups are made here, by one thread: py-lmdb lets the GIL go and takes it back for each.
        """
        keys = np.empty(len(rows), np.uint64)
        for shard in distinct(shards).tolist():
            here = shards == shard
            values = self.index(shard).value
            assert values is not None
            keys[here] = values[rows[here]]
        get, packed = self._here().transaction.get, keys.astype(">u8").tobytes()  # as `key_bytes` does it
        found = list[Any]()
        try:
            with _LOCK:
                for place in range(0, len(packed), 8):
                    found.append(get(packed[place : place + 8]))
        except lmdb.Error as error:
            raise DamageError(
                f"{DATA_FILE} in {str(self.path)!r} is damaged near key {keys[len(found)]} ({error}): run "
                "`packer verify`, then copy it again or rebuild"
            ) from error
        if None in found:
            place = found.index(None)
            raise self.damaged(self.first(int(shards[place])) + int(rows[place]))
        return found

    def addresses(self, shard: int, rows: Ints) -> tuple[Any, Ints, Ints]:
        """Those of the records, which this process's transaction keeps mapped."""
        found, index = self._here().records[shard], self.index(shard)
        assert index.value is not None
        places = np.searchsorted(found.keys, index.value[rows])
        new = distinct(places[found.addresses[places] == 0])
        if len(new):
            views = self.holders(np.full(len(new), shard), found.rows[new])
            found.addresses[new] = [address_of(view) for view in views]
            found.sizes[new] = [len(view) for view in views]
        return None, found.addresses[places], found.sizes[places]

    def starts(self, shard: int, rows: Ints) -> tuple[Any, Ints]:
        """Where records begin, give or take two pages: to look one up is to read it, since py-lmdb touches its pages.

        They lie one behind the other, each from a page's beginning on, with the tree's own pages spread between them:
        one of 1,024 samples is looked up, and the others are placed between them.
        """
        parts, found = rows // _STRETCH, np.empty(len(rows), np.int64)
        for part in set(parts.tolist()):
            here = parts == part
            found[here] = self._stretch(shard, part)[rows[here] - part * _STRETCH]
        return None, found

    def _stretch(self, shard: int, part: int) -> Ints:
        """About where the records of the samples of one stretch begin, and that of the first one behind it."""
        index, first = self.index(shard), part * _STRETCH
        stop = min(first + _STRETCH + 1, len(index))
        assert index.value is not None
        borders = np.flatnonzero(index.value[first + 1 : stop] != index.value[first : stop - 1]) + 1
        ends = (index.offset[:, first:stop] + index.size[:, first:stop]).max(0).astype(np.int64)
        if len(borders) < stop - first - 1:  # small samples share records
            ends = np.maximum.reduceat(ends, np.append(0, borders))
        pages = (ends + (_PAGE_HEADER + _PAGE - 1)) // _PAGE
        starts = (np.cumsum(pages) - pages) * _PAGE
        start, last = self._known(shard, part), self._known(shard, part + 1)
        starts += start + np.arange(len(starts)) * (last - start - starts[-1]) // max(1, len(starts) - 1)
        if len(starts) < stop - first:
            starts = np.repeat(starts, np.diff(borders, prepend=0, append=stop - first))
        return np.asarray(starts)

    def _known(self, shard: int, part: int) -> int:
        """Where the record of a stretch's first sample begins; behind the last stretch that of the last sample."""
        known = self._here().known
        size = len(self.index(shard))
        found = known.setdefault(shard, np.zeros(-(-size // _STRETCH) + 1, np.int64))
        if not found[part]:
            row = min(part * _STRETCH, size - 1)
            found[part] = address_of(self.holders(np.array([shard]), np.array([row]))[0])
        return int(found[part])

    def _here(self) -> _Opened:
        """What this process has opened, and where that lies in its memory."""
        if self._opened.process != os.getpid():
            self.check_same()
            opened = transaction(self.path, self._size)
            self._opened = _Opened(os.getpid(), opened, Recent(self._records), {})
        return self._opened

    def _records(self, shard: int) -> _Records:
        index = self.index(shard)
        assert index.value is not None
        order = np.argsort(index.value, kind="stable")
        keys = index.value[order]
        first = np.append(True, keys[1:] != keys[:-1])[: len(keys)]
        keys, rows = keys[first], order[first]
        return _Records(keys, rows, np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64))

    def index_name(self, shard: int) -> str:
        """File of an index run."""
        return index_file("data", shard)

    def shard_name(self, shard: int) -> str:  # noqa: ARG002 - the seam's signature
        """The data file."""
        return DATA_FILE

    def shard_bytes(self, shard: int) -> int | None:  # noqa: ARG002 - the seam's signature
        """Unknown: values are checked as they are read."""
        return None
