"""Making a staged store the target: durable first, then one rename."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from packer.output.card import CARD, card_text
from packer.recipe import size_name
from packer_reader.errors import NotAStoreError, OutputError, StoreError, os_error
from packer_reader.format.columns import canonical_json
from packer_reader.format.names import MANIFEST
from packer_reader.stores.open import bare_store, has_manifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer.output.staging import Staging
    from packer_reader.format.manifest import Manifest

__all__ = ["check_absent_or_ours", "check_target", "check_tmp", "publish"]

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


def check_target(target: Path, sources: Sequence[Path], *, overwrite: bool) -> None:
    """Refuse a target that may not be written, before any work is done.

    Args:
        target: a path without links.
        sources: the raw data.
        overwrite: whether a store of ours may be replaced.

    Raises:
        OutputError: it overlaps the source, exists, or holds files that are not ours.
    """
    for source in sources:
        raw = Path(os.path.realpath(source))
        if target == raw or raw in target.parents:
            raise OutputError(f"output {str(target)!r} lies inside the source: choose a place outside {str(source)!r}")
        if target in raw.parents:
            raise OutputError(f"output {str(target)!r} holds the source: choose another place")
    for parent in target.parents:
        if parent.exists():
            if not parent.is_dir():
                raise OutputError(f"output {str(target)!r} cannot be made: {str(parent)!r} is a file")
            break
    if os.path.ismount(target):
        raise OutputError(f"output {str(target)!r} is a mount point, which cannot be replaced: name a folder in it")
    check_absent_or_ours(target, overwrite=overwrite)


def check_tmp(tmp: Path, sources: Sequence[Path]) -> None:
    """Refuse a folder for unfinished parts that a scan would find, or that is not there.

    Raises:
        OutputError: naming it.
    """
    place = Path(os.path.realpath(tmp))
    if not place.is_dir():
        raise OutputError(f"--tmp {str(tmp)!r} is no folder: make it, or name another one")
    for source in sources:
        raw = Path(os.path.realpath(source))
        if place == raw or raw in place.parents:
            raise OutputError(f"--tmp {str(tmp)!r} lies inside the source: choose a place outside {str(source)!r}")


def check_absent_or_ours(target: Path, *, overwrite: bool) -> None:
    """Refuse a target that exists, unless it is an empty folder, or ours and may be replaced.

    Raises:
        OutputError: naming what is in the way.
    """
    if not target.exists():
        return
    if not target.is_dir():
        raise OutputError(f"output {str(target)!r} exists and is not a folder: choose another name")
    if not any(target.iterdir()):
        return
    if not overwrite:
        raise OutputError(
            f"output {str(target)!r} exists already: choose another name, or give --overwrite to replace it"
        )
    _check_ours(target)


def _check_ours(target: Path) -> None:
    try:
        known = _files_of(target)
    except (StoreError, OSError) as error:
        raise OutputError(f"{str(target)!r} will not be replaced: {error}") from None
    for folder, folders, files in os.walk(target):
        linked = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in [*files, *linked]:
            if Path(folder) / name not in known:
                raise OutputError(
                    f"{str(target)!r} will not be replaced, no store of ours wrote {str(Path(folder) / name)!r}: "
                    "move that file away, or choose another name"
                )


def _files_of(target: Path) -> set[Path]:
    """Every file that one build left: a store's, or those of the splits and sizes of one job and their cards."""
    if has_manifest(target):
        return {target / name for name in _listed(target, read_manifest(target))}
    stores = {store: read_manifest(store) for store in _stores_below(target, 2)}
    jobs = {canonical_json([{**m.recipe, "resize": None}, m.source.get("digest")]) for m in stores.values()}
    if len(jobs) > 1:
        raise NotAStoreError("it holds stores of several builds; remove the ones that may go yourself")
    stray = [store for store, manifest in stores.items() if store.relative_to(target).parts not in _names(manifest)]
    if stray:
        raise NotAStoreError(f"{str(stray[0])!r} in it is a store of another build; remove it yourself if it may go")
    known = {store / name for store, manifest in stores.items() for name in _listed(store, manifest)}
    for folder in {store.parent for store, manifest in stores.items() if manifest.split}:
        card = folder / CARD
        splits = [store.name for store in stores if store.parent == folder]
        if card.is_file() and card.read_bytes() == card_text(splits).encode():
            known.add(card)
    return known


def _stores_below(folder: Path, levels: int) -> list[Path]:
    stores = []
    for inner in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        if has_manifest(inner):
            stores.append(inner)
        elif levels > 1:
            stores += _stores_below(inner, levels - 1)
    return stores


def _names(manifest: Manifest) -> list[tuple[str, ...]]:
    """Where in the target a build puts this store: by split, by size, or by both."""
    size = size_name(manifest.recipe.get("resize"))
    return [(size, manifest.split), (manifest.split,)] if manifest.split else [(size,)]


def _listed(store: Path, manifest: Manifest) -> list[str]:
    names = [MANIFEST, *manifest.files]
    names += [name for name, _, _ in bare_store(store, manifest).shard_files()]
    return names


def publish(staging: Staging, target: Path, *, overwrite: bool) -> None:
    """Make files and folders durable, then give the store its name.

    A crash at any moment leaves the old store, or none, or the new one; the mark lets the next run tell which.

    Raises:
        OutputError: something has appeared at the target, or the file system cannot exchange two folders.
    """
    try:
        _sync_tree(staging.store)
        check_absent_or_ours(target, overwrite=overwrite)
        ready = staging.make_ready()
        if overwrite and target.exists() and any(target.iterdir()):
            _exchange(ready, target)
        else:
            ready.rename(target)
        _sync(target.parent)
    except OSError as error:
        raise os_error(error, "publishing", target) from None


def _sync_tree(root: Path) -> None:
    for folder, _, files in os.walk(root, topdown=False):
        for name in files:
            _sync(Path(folder) / name)
        _sync(Path(folder))


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _exchange(one: Path, other: Path) -> None:
    """Swap two names in one step: renameat2 with RENAME_EXCHANGE, Linux 3.15."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if result != 0:
        number = ctypes.get_errno()
        if number in {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}:
            raise OutputError(f"this file system cannot replace {str(other)!r} in one step: remove it and run again")
        raise OSError(number, os.strerror(number), str(other))
