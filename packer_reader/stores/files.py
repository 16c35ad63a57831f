"""Mapped files of a store: read-only, sized against the manifest before a byte is touched.

A file that is shorter than it was would end the process with SIGBUS at the first access behind its end, which torch
then reports as missing shared memory; so sizes are checked whenever a file is mapped.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

from packer_reader.errors import DamageError, NotAStoreError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Recent", "check_size", "folder_identity", "map_file", "read_error", "read_file"]

Value = TypeVar("Value")


def read_error(path: Path, error: OSError) -> StoreError:
    """What a failure to read a store's file means."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotAStoreError(
            f"{path.name} is missing from store {str(path.parent)!r}: copy the whole folder again, or rebuild"
        )
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return StoreError(f"too many files are open to read {str(path)!r}: raise `ulimit -n`, or build larger shards")
    reason = error.strerror or type(error).__name__
    return StoreError(f"{str(path)!r} cannot be read ({reason}): check its permissions and the disk")


def read_file(path: Path, limit: int) -> bytes:
    """A small file of a store.

    Args:
        path: the file.
        limit: bytes; checked before it is read.

    Raises:
        StoreError: it is missing, unreadable, or larger than that.
    """
    try:
        size = path.stat().st_size
        if size > limit:
            raise StoreError(f"{str(path)!r} has {size} bytes, the limit is {limit}: this is no {path.name} of a store")
        return path.read_bytes()
    except OSError as error:
        raise read_error(path, error) from None


def check_size(path: Path, size: int | None) -> None:
    """Compare a file with its listed size in bytes.

    Raises:
        StoreError: it is missing or unreadable, or has another size.
    """
    try:
        found = path.stat().st_size
    except OSError as error:
        raise read_error(path, error) from None
    if size is not None and found != size:
        raise DamageError(
            f"{path.name} in {str(path.parent)!r} has {found} bytes, the manifest says {size}: copy it again, or "
            "rebuild; `packer verify` lists all damage"
        )


def folder_identity(path: Path) -> tuple[int, int]:
    """Device and inode of a folder.

    Raises:
        StoreError: it is gone, or the system does not let one look.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise read_error(path, error) from None
    return found.st_dev, found.st_ino


def map_file(path: Path, size: int | None) -> memoryview:
    """A whole file as read-only memory.

    Args:
        path: the file.
        size: its listed size in bytes; None skips the comparison.

    Raises:
        StoreError: it is missing or unreadable, or has another size.
    """
    check_size(path, size)
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            length = os.fstat(file).st_size
            return memoryview(mmap.mmap(file, length, access=mmap.ACCESS_READ)) if length else memoryview(b"")
        finally:
            os.close(file)
    except OSError as error:
        raise read_error(path, error) from None


class Recent(Generic[Value]):
    """The values used last, made when they are missing: open files are few, however many shards a store has.

    A view of a map that has been dropped from here stays valid; it holds the map.
    """

    def __init__(self, make: Callable[[int], Value]) -> None:
        """Make values by number with `make`."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._make, self._held = make, OrderedDict[int, Value]()
        self._limit = max(8, min(256, (soft if soft > 0 else 1024) // 8))

    def __getitem__(self, number: int) -> Value:
        try:
            self._held.move_to_end(number)
            return self._held[number]
        except KeyError:
            value = self._held[number] = self._make(number)
            if len(self._held) > self._limit:
                self._held.popitem(last=False)
            return value
