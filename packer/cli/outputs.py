"""Where a command may write what it says about stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packer_reader.errors import UsageError
from packer_reader.format.names import MANIFEST

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["outside_of_stores"]


def outside_of_stores(path: Path) -> None:
    """See that a file about stores is not put into one.

    Raises:
        UsageError: its folder is a store, or there is no such folder, or it is a folder itself.
    """
    if (path.parent / MANIFEST).exists():
        raise UsageError(f"{str(path)!r} would lie in a store: name a file elsewhere")
    if not path.parent.is_dir():
        raise UsageError(f"folder {str(path.parent)!r} does not exist: make it first, or name another one")
    if path.is_dir():
        raise UsageError(f"{str(path)!r} is a folder: name a file in it")
