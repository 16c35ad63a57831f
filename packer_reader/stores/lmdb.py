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
from packer_reader.stores.files import Recent, check_size

if TYPE_CHECKING:
    from pathlib import Path

    from packer_reader.format.manifest import Manifest
    from packer_reader.stores.base import Ints

__all__ = ["LmdbStore", "transaction"]

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
        self._placed: tuple[int, Recent[tuple[Ints, Ints, Ints]]] = (-1, Recent(self._places))
        """Process, and by index run where the records lie in its memory."""

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

    def addresses(self, shard: int, rows: Ints) -> tuple[Any, Ints, Ints]:
        """Those of the records, which this process's transaction keeps mapped."""
        if self._placed[0] != os.getpid():
            self._placed = os.getpid(), Recent(self._places)
        keys, addresses, sizes = self._placed[1][shard]
        index = self.index(shard)
        assert index.value is not None
        places = np.searchsorted(keys, index.value[rows])
        return None, addresses[places], sizes[places]

    def _places(self, shard: int) -> tuple[Ints, Ints, Ints]:
        """Keys of a run's records, their addresses and their bytes: looked up once, since the file never changes."""
        index = self.index(shard)
        assert index.value is not None
        keys, rows = np.unique(index.value, return_index=True)
        views = self.holders(np.full(len(rows), shard), rows)
        arrays = [np.frombuffer(view, np.uint8) for view in views]
        addresses = [array.__array_interface__["data"][0] for array in arrays]
        return keys, np.array(addresses, np.int64), np.array([len(array) for array in arrays], np.int64)

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
