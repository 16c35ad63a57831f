"""LMDB: one environment per file and process, opened when first read.

lmdb >= 2 refuses to open a file twice in a process, and a forked child inherits that registry with handles it may not
use; so handles live here, by file identity, and a child begins by closing what it inherited.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import lmdb
import numpy as np

from packer_reader.errors import DamageError
from packer_reader.format.names import DATA_FILE, index_file
from packer_reader.stores.base import Store
from packer_reader.stores.files import check_size

if TYPE_CHECKING:
    from pathlib import Path

    from packer_reader.format.manifest import Manifest
    from packer_reader.stores.base import Array, Ints

__all__ = ["LmdbStore", "transaction"]

_PLACES = 1 << 20
"""Records whose places are remembered."""


class _Memory:
    """Bytes at an address, which the process's transaction keeps mapped."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,), "data": (address, True)}


_OPEN: dict[tuple[int, int], tuple[lmdb.Environment, lmdb.Transaction]] = {}
"""This process's handles by device and inode."""
_LOCK = threading.Lock()


def _drop_inherited() -> None:
    global _LOCK  # noqa: PLW0603 - another thread of the parent may have held it
    _LOCK = threading.Lock()
    for env, _ in _OPEN.values():
        env.close()
    _OPEN.clear()


def _before_fork() -> None:
    """No fork while a thread reads: closing its handle in the child would wait for a thread that is not there."""
    _LOCK.acquire()


def _after_fork() -> None:
    _LOCK.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_drop_inherited)


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
                env = lmdb.open(str(folder), readonly=True, lock=False, create=False, max_dbs=0, readahead=True)
                _OPEN[identity] = (env, env.begin(buffers=True))
            except lmdb.Error as error:
                raise DamageError(
                    f"{str(path)!r} cannot be opened ({error}): close handles of your own on it in this process, or "
                    "copy it again"
                ) from error
        return _OPEN[identity][1]


class LmdbStore(Store):
    """A store in one LMDB file."""

    def __init__(self, path: Path, manifest: Manifest, identity: tuple[int, int] | None = None) -> None:
        """Take a complete store's folder and its parsed manifest; see `Store`."""
        super().__init__(path, manifest, identity)
        self._size = int(manifest.files[DATA_FILE]["bytes"]) if DATA_FILE in manifest.files else None
        self._opened: tuple[int, Any] = (-1, None)
        """Process and its transaction."""
        self._placed: tuple[int, dict[int, tuple[int, int]]] = (-1, {})
        """Process, and address and bytes of its records by key."""

    @property
    def container_sizes(self) -> Ints:
        """One container: the file is in key order from end to end."""
        return np.array([len(self)], np.int64)

    def holders(self, shards: Ints, rows: Ints) -> list[memoryview]:
        """The values that hold the samples.

        All of a batch's look-ups are made here, by one thread: py-lmdb lets the GIL go and takes it back for each.
        """
        keys = np.empty(len(rows), np.uint64)
        for shard in np.unique(shards).tolist():
            here = shards == shard
            values = self.index(shard).value
            assert values is not None
            keys[here] = values[rows[here]]
        get, packed = self._transaction().get, keys.astype(">u8").tobytes()  # as `key_bytes` does it
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

    def memory(self, shard: int, rows: Ints) -> tuple[Array, Ints]:
        """The part of the map that holds the records.

        Where a record lies is looked up once per process: the file never changes, and its map lasts.
        """
        index, numbers = self.index(shard), rows.tolist()
        assert index.value is not None
        keys = index.value[rows].tolist()
        if self._placed[0] != os.getpid() or len(self._placed[1]) > _PLACES:
            self._placed = os.getpid(), {}
        places = self._placed[1]
        missing = [row for key, row in zip(keys, numbers, strict=True) if key not in places]
        if missing:
            wanted = np.array(missing, np.int64)
            for row, view in zip(missing, self.holders(np.full(len(wanted), shard), wanted), strict=True):
                address = int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
                places[int(index.value[row])] = address, len(view)
        found = np.array([places[key] for key in keys], np.int64).reshape(-1, 2)
        ends = (index.offset[:, rows] + index.size[:, rows]).max(0, initial=0).astype(np.int64)
        if bool((ends > found[:, 1]).any()):
            raise self.damaged(self.first(shard) + int(rows[ends > found[:, 1]][0]))
        low = int(found[:, 0].min())
        return np.asarray(_Memory(low, int((found[:, 0] + found[:, 1]).max()) - low)), found[:, 0] - low

    def _transaction(self) -> Any:
        if self._opened[0] != os.getpid():
            self.check_same()
            self._opened = (os.getpid(), transaction(self.path, self._size))
        return self._opened[1]

    def index_name(self, shard: int) -> str:
        """File of an index run."""
        return index_file("data", shard)

    def shard_name(self, shard: int) -> str:  # noqa: ARG002 - the seam's signature
        """The data file."""
        return DATA_FILE

    def shard_bytes(self, shard: int) -> int | None:  # noqa: ARG002 - the seam's signature
        """Unknown: values are checked as they are read."""
        return None
