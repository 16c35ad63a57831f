"""Mapped files of a store: read-only, sized against the manifest before a byte is touched.

A file that is shorter than it was would end the process with SIGBUS at the first access behind its end, which torch
then reports as missing shared memory; so sizes are checked whenever a file is mapped.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

from packer_reader.errors import DamageError, NotAStoreError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_size", "map_file"]


def check_size(path: Path, size: int | None) -> None:
    """Compare a file with its listed size in bytes.

    Raises:
        NotAStoreError: it is missing.
        DamageError: it has another size.
    """
    try:
        found = path.stat().st_size
    except OSError as error:
        raise NotAStoreError(
            f"{path.name} is missing from store {str(path.parent)!r} ({error.strerror}): copy the whole "
            "folder again, or rebuild"
        ) from None
    if size is not None and found != size:
        raise DamageError(
            f"{path.name} in {str(path.parent)!r} has {found} bytes, the manifest says {size}: copy it again, "
            "or rebuild; `packer verify` lists all damage"
        )


def map_file(path: Path, size: int | None) -> memoryview:
    """A whole file as read-only memory.

    Args:
        path: the file.
        size: its listed size in bytes; None skips the comparison.

    Raises:
        NotAStoreError: it is missing.
        DamageError: it has another size.
    """
    check_size(path, size)
    file = os.open(path, os.O_RDONLY)
    try:
        length = os.fstat(file).st_size
        if length == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file, length, access=mmap.ACCESS_READ))
    finally:
        os.close(file)
