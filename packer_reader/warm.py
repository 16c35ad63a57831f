"""`warm=True`: a store is read once from end to end, so that the system has it in memory from the first batch on."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from packer_reader.errors import UsageError
from packer_reader.machine import free_memory
from packer_reader.sizes import format_bytes
from packer_reader.stores.files import read_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from packer_reader.stores.base import Store

__all__ = ["progress_bar", "warm"]

_PIECE = 1 << 22
"""Bytes read at a time."""


def warm(store: Store) -> None:
    """Read all files; the ranks of a machine share the work, as LOCAL_RANK and LOCAL_WORLD_SIZE say.

    Raises:
        UsageError: there is not enough free memory.
        StoreError: a file is missing.
    """
    files = store.all_files()
    size, free = sum(files.values()), free_memory()
    if size > free:
        raise UsageError(
            f"warm=True: {store!r} has {format_bytes(size)}, {format_bytes(free)} of memory are free: leave it out, "
            "and what fits will stay in memory by itself"
        )
    rank, ranks = _number("LOCAL_RANK", 0), max(1, _number("LOCAL_WORLD_SIZE", 1))
    mine = sorted(files)[rank % ranks :: ranks]
    buffer = bytearray(_PIECE)
    with progress_bar("reading", sum(files[name] for name in mine), "B") as step:
        for name in mine:
            store.check_same()
            try:
                with (store.path / name).open("rb", buffering=0) as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
                    while count := file.readinto(buffer):
                        step(count)
            except OSError as error:
                raise read_error(store.path / name, error) from None


def _number(name: str, missing: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if re.fullmatch("[0-9]{1,6}", text) else missing


@contextmanager
def progress_bar(what: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
    """A bar on a terminal; what is yielded takes the steps."""
    from tqdm import tqdm  # noqa: PLC0415 - only for what takes long

    with tqdm(total=total, desc=what, unit=unit, unit_scale=True, disable=None, leave=False) as bar:
        yield bar.update
