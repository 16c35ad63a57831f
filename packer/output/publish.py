"""Making a staged store the target: durable first, then one rename."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

from packer.output.card import CARD, card_text
from packer_reader.errors import OutputError, StoreError, os_error
from packer_reader.format.manifest import parse_manifest
from packer_reader.format.names import MANIFEST, SHARDS, index_file, shard_file

__all__ = ["check_target", "publish"]

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


def check_target(target: Path, source: Path, *, overwrite: bool) -> None:
    """Refuse a target that may not be written, before any work is done.

    Raises:
        OutputError: it overlaps the source, exists, or holds files that are not ours.
    """
    real, raw = Path(os.path.realpath(target)), Path(os.path.realpath(source))
    if real == raw or raw in real.parents:
        raise OutputError(f"output {str(target)!r} lies inside the source: choose a place outside {str(source)!r}")
    if real in raw.parents:
        raise OutputError(f"output {str(target)!r} holds the source: choose another place")
    for parent in real.parents:
        if parent.exists():
            if not parent.is_dir():
                raise OutputError(f"output {str(target)!r} cannot be made: {str(parent)!r} is a file")
            break
    if not target.exists() and not target.is_symlink():
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
    known: set[Path] = set()
    stores = [target] if (target / MANIFEST).is_file() else [p for p in target.iterdir() if (p / MANIFEST).is_file()]
    for store in stores:
        try:
            known |= {store / name for name in _listed(store)}
        except (StoreError, OSError) as error:
            raise OutputError(f"{str(store)!r} will not be replaced, its manifest cannot be read: {error}") from None
    if stores and stores != [target] and (target / CARD).is_file():
        card = card_text([store.name for store in stores])
        known |= {target / CARD} if (target / CARD).read_bytes() == card.encode() else set()
    for folder, folders, files in os.walk(target):
        linked = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in [*files, *linked]:
            if Path(folder) / name not in known:
                raise OutputError(
                    f"{str(target)!r} will not be replaced, no store of ours wrote {str(Path(folder) / name)!r}: "
                    "move that file away, or choose another name"
                )


def _listed(store: Path) -> list[str]:
    manifest = parse_manifest((store / MANIFEST).read_bytes())
    names = [MANIFEST, SHARDS, *manifest.files]
    for number in range(manifest.shards):
        if manifest.kind == "tar":
            names += [shard_file(manifest.prefix, number), index_file(manifest.prefix, number)]
        else:
            names.append(index_file("data", number))
    return names


def publish(staged: Path, target: Path) -> None:
    """Make files and folders durable, then give the store its name.

    A crash at any moment leaves the old store, or none, or the new one.

    Raises:
        OutputError: the file system cannot exchange two folders, or refuses.
    """
    try:
        _sync_tree(staged)
        if target.exists() and any(target.iterdir()):
            _exchange(staged, target)
            shutil.rmtree(staged)
        else:
            staged.rename(target)
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
        reason = os.strerror(ctypes.get_errno())
        raise OutputError(
            f"this file system cannot replace {str(other)!r} in one step ({reason}): remove it and run again"
        )
