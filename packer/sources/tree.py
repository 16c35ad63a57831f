"""Folders and archives as one tree: what a scan walks.

A level is one folder's content: files with sizes and places, folders to go on with, and what could not be looked at.
Tar and zip archives are folders, whether they lie on the disk or in another archive, as ImageNet's do.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from packer_reader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ARCHIVES",
    "COMPRESSED",
    "COMPRESSED_REASON",
    "Files",
    "Folder",
    "Level",
    "Place",
    "is_folder",
    "is_junk",
    "suffix_of",
]

ARCHIVES = (b".tar", b".zip")
COMPRESSED = (b".tar.gz", b".tgz", b".tar.bz2", b".tbz2", b".tar.xz", b".txz", b".tar.zst", b".7z", b".rar")
"""Archives that cannot be read at a place of one's choice."""
COMPRESSED_REASON = "a compressed archive cannot be read in places: unpack it, or store it as a plain tar or zip"
_JUNK = frozenset({b"thumbs.db", b"desktop.ini", b"__macosx", b"lost+found", b"$recycle.bin"})


@dataclass
class Files:
    """Files of one folder, in parallel lists."""

    names: list[bytes] = field(default_factory=list)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    mtimes: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    """First bytes in the archive file; empty for files of their own."""
    packed: array[int] = field(default_factory=lambda: array("q"))
    """Deflated bytes, or 0; empty for files of their own."""
    crcs: array[int] = field(default_factory=lambda: array("q"))
    """CRC-32 of the content, or -1 where the archive has none; empty for files of their own."""


@dataclass
class Level:
    """The content of one folder, sorted by bytes."""

    files: Files = field(default_factory=Files)
    folders: list[tuple[bytes, Place]] = field(default_factory=list)
    """Name, and how to go on; archives are folders."""
    archives: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Name and path of archive files among them, which are folders once they are opened."""
    ignored: Counter[bytes] = field(default_factory=Counter)
    """Files that are no samples, by suffix."""
    refused: list[tuple[bytes, str, str]] = field(default_factory=list)
    """Name, failure class and reason of what cannot be read."""
    notices: list[str] = field(default_factory=list)
    """What happened to the folder itself, to stand behind its name."""


class Place(Protocol):
    """A folder that can be looked into."""

    @property
    def archive(self) -> tuple[int, int] | None:
        """Size and mtime_ns of the archive file that begins here; None elsewhere."""

    @property
    def kind(self) -> str:
        """`folder` of the file system, `archive`, or `inside` one."""

    def level(self, wanted: Callable[[bytes], bool]) -> Level:
        """Its content; of files only those whose suffix is wanted are looked at.

        Raises:
            SourceError: it cannot be listed.
        """


def is_junk(name: bytes) -> bool:
    """Whether operating systems and editors leave this behind: it is no data."""
    return name.startswith(b".") or name.lower() in _JUNK


def suffix_of(name: bytes) -> bytes:
    """The last extension with its dot, lower case; empty without one."""
    dot = name.rfind(b".")
    return name[dot:].lower() if dot > 0 else b""


class Folder:
    """A folder of the file system. Links are followed, but never up."""

    archive: tuple[int, int] | None = None
    kind = "folder"

    def __init__(self, path: bytes, above: frozenset[tuple[int, int]] | None = None) -> None:
        """A folder at a path; `above` are the folders it was reached through."""
        self._path = path
        self._above = _ancestors(path) if above is None else above

    def level(self, wanted: Callable[[bytes], bool]) -> Level:
        """See `Place.level`."""
        try:
            here = _identity(self._path)
            if here in self._above:
                return Level(notices=["is a link to a folder above it and was not followed"])
            names, folders = self._names()
            level = Level()
            for name in folders:
                level.folders.append((name, Folder(self._path + b"/" + name, self._above | {here})))
            self._look(sorted(names), level, wanted)
        except OSError as error:
            where = os.fsdecode(self._path)
            raise SourceError(f"cannot list {where!r}: {error.strerror}; check the path and its permissions") from None
        level.folders.sort(key=lambda item: item[0])
        return level

    def _names(self) -> tuple[list[bytes], list[bytes]]:
        """Names of files and of folders. A folder may hold a million: nothing but names is kept."""
        files: list[bytes] = []
        folders: list[bytes] = []
        with os.scandir(self._path) as found:
            for entry in found:
                name = entry.name
                if is_junk(name):
                    continue
                (folders if is_folder(entry) else files).append(name)
        return files, folders

    def _look(self, names: list[bytes], level: Level, wanted: Callable[[bytes], bool]) -> None:
        """Sizes and times of the files that count."""
        files, here = level.files, os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in names:
                suffix = suffix_of(name)
                if not wanted(suffix):
                    if suffix in ARCHIVES or name.lower().endswith(COMPRESSED):
                        self._archive(name, suffix, level)
                    else:
                        level.ignored[suffix] += 1
                    continue
                try:
                    state = os.stat(name, dir_fd=here)
                except OSError:
                    level.refused.append((name, "unreadable", "the link leads nowhere"))
                    continue
                if stat.S_ISREG(state.st_mode):
                    files.names.append(name)
                    files.sizes.append(state.st_size)
                    files.mtimes.append(state.st_mtime_ns)
                else:
                    level.refused.append((name, "unreadable", "it is not a regular file"))
        finally:
            os.close(here)

    def _archive(self, name: bytes, suffix: bytes, level: Level) -> None:
        if suffix in ARCHIVES:
            level.archives.append((name, self._path + b"/" + name))
        else:
            level.refused.append((name, "unsupported", COMPRESSED_REASON))


def is_folder(entry: os.DirEntry[str] | os.DirEntry[bytes]) -> bool:
    """Whether an entry is a folder or a link to one; a link to itself is none, where `is_dir` raises."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _identity(path: bytes) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116 - paths are bytes here
    return found.st_dev, found.st_ino


def _ancestors(path: bytes) -> frozenset[tuple[int, int]]:
    """All that a folder lies in."""
    real, found = Path(os.fsdecode(path)).resolve(), set()
    for parent in real.parents:
        found.add(_identity(os.fsencode(parent)))
    return frozenset(found)
