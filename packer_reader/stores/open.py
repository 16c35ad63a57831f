"""From a path to an opened store."""

from __future__ import annotations

import os
import stat
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from packer_reader.errors import NotAStoreError, NotFoundError, UsageError
from packer_reader.format.manifest import MAX_MANIFEST, parse_manifest
from packer_reader.format.names import MANIFEST
from packer_reader.stores.files import check_size, read_error, read_file

if TYPE_CHECKING:
    from packer_reader.format.manifest import Manifest
    from packer_reader.stores.base import Store

__all__ = [
    "CHECKED_FILES",
    "bare_store",
    "has_manifest",
    "open_store",
    "read_manifest",
    "splits_of",
    "store_folders",
]

CHECKED_FILES = 2_000
"""Stores of up to so many files have all sizes compared when they are opened; larger ones file by file as they are
used."""

_HOMES = {"tar": ("packer_reader.stores.tar", "TarStore"), "lmdb": ("packer_reader.stores.lmdb", "LmdbStore")}


def has_manifest(path: Path) -> bool:
    """Whether a folder says that it is a store.

    Raises:
        StoreError: the system does not let one look.
    """
    try:
        return stat.S_ISREG((path / MANIFEST).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise read_error(path / MANIFEST, error) from None


def read_manifest(folder: Path) -> Manifest:
    """A store's manifest.

    Raises:
        StoreError: it is missing, unreadable, too large, of another version, or unsound.
    """
    return parse_manifest(read_file(folder / MANIFEST, MAX_MANIFEST))


def splits_of(path: Path) -> list[str]:
    """Names of the complete stores in a folder, such as its splits."""
    try:
        return sorted(entry.name for entry in path.iterdir() if has_manifest(entry))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise read_error(path, error) from None


def store_folders(path: Path) -> list[Path]:
    """The complete stores at a path: itself, or those below, as `SPLIT`, `SIZE` or `SIZE/SPLIT`.

    Raises:
        NotAStoreError: there is none.
    """
    if has_manifest(path):
        return [path]
    found = [path / name for name in splits_of(path)]
    if not found and path.is_dir():
        found = [folder / name for folder in sorted(path.iterdir()) if folder.is_dir() for name in splits_of(folder)]
    if found:
        return found
    if not path.exists():
        raise NotAStoreError(f"store {str(path)!r} does not exist: check the path")
    raise NotAStoreError(
        f"{str(path)!r} is no complete store, it has no {MANIFEST}: give the folder that `packer "
        "build` wrote, or run an interrupted build again"
    )


def open_store(path: str | os.PathLike[str], split: str | None = None) -> Store:
    """Open a store, or one split of a folder of stores.

    Args:
        path: the folder.
        split: which split; needed when the folder has several.

    Raises:
        NotAStoreError: there is no complete store.
        NotFoundError: there is no such split.
        StoreError: it is damaged, or of another version.

    Example:
        store = packer_reader.open("out.lmdb")
        store[0]["image"]          # uint8 (height, width, 3)
    """
    if not path or not isinstance(path, str | os.PathLike):
        raise UsageError(f"the store's path is {path!r}: give the folder that `packer build` wrote")
    # Absolute, so that a program may change its folder while it reads.
    folder = Path(path).absolute()
    if not has_manifest(folder):
        return _open_split(folder, split)
    store = _open(folder)
    if split is not None and split != store.manifest.split:
        found = f"split {store.manifest.split!r}" if store.manifest.split else "a store without splits"
        raise NotFoundError(f"{str(folder)!r} is {found}, not {split!r}: leave split out, or give another folder")
    return store


def _open_split(folder: Path, split: str | None) -> Store:
    names = [found.relative_to(folder).as_posix() for found in store_folders(folder)]
    if split is None and len(names) > 1:
        raise UsageError(
            f"{str(folder)!r} holds stores {', '.join(names)}: choose a split (split= in Python, --split on the "
            "command line), or give its folder"
        )
    if split is not None and split not in names:
        raise NotFoundError(f"there is no split {split!r} in {str(folder)!r}: it has {', '.join(names)}")
    return _open(folder / (split or names[0]))


def bare_store(folder: Path, manifest: Manifest) -> Store:
    """A store whose files have not been looked at yet, but for the shard table.

    Raises:
        StoreError: the shard table is missing or damaged.
    """
    module, name = _HOMES[manifest.kind]
    store: Store = getattr(import_module(module), name)(folder, manifest)
    return store


def _open(folder: Path) -> Store:
    manifest = read_manifest(folder)
    store = bare_store(folder, manifest)
    if 2 * manifest.shards + len(manifest.files) <= CHECKED_FILES:
        for file, listed in manifest.files.items():
            check_size(folder / file, listed["bytes"])
        for file, size, _ in store.shard_files():
            check_size(folder / file, size)
    return store
