"""A scan of folders and archives as it goes: where it is, and what it has found."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from packer.sample import Problem
from packer.sources.archive import Archive
from packer.sources.refs import Common, Places
from packer.sources.tree import Folder, suffix_of
from packer_reader.errors import SourceError

if TYPE_CHECKING:
    from packer.sources.refs import RefWriter
    from packer.sources.tree import Level, Place

__all__ = ["EXTENSIONS", "Walk", "Where", "look", "problem", "root_of", "take"]

EXTENSIONS = frozenset(
    ".jpg .jpeg .jpe .jfif .png .bmp .dib .gif .webp .tif .tiff .ppm .pgm .pbm .pnm .avif .jp2".split()  # noqa: SIM905
)
"""What counts as an image, whatever the case; the content decides how it is decoded."""
_WANTED = frozenset(extension.encode() for extension in EXTENSIONS)


@dataclass
class Walk:
    """The state of one scan."""

    refs: RefWriter
    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    suffixes: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    labels: dict[bytes, int] = field(default_factory=dict)
    splits: tuple[str, ...] = ()

    @property
    def found(self) -> int:
        """Samples so far."""
        return self.refs.count + len(self.problems)


@dataclass(frozen=True)
class Where:
    """A folder of a source, and what its samples have in common."""

    place: Place
    source: int
    name: bytes = b""
    """Relative to the source; empty for the source itself."""
    outer: int = 0
    """Bytes of the name that lead to the archive file it lies in."""
    split: int = -1
    label: int = -1

    def inside(self, name: bytes, place: Place, **changes: int) -> Where:
        """A folder in it, with what is different there."""
        path = f"{os.fsdecode(self.name)}/" if self.name else ""
        path += os.fsdecode(name)
        full = os.fsencode(path)
        same = {"outer": self.outer, "split": self.split, "label": self.label} | changes
        if place.archive:
            same["outer"] = len(full)
        return Where(place, self.source, full, **same)


def root_of(path: str) -> Place:
    """A source as a folder or an archive."""
    raw = os.fsencode(path.rstrip("/") or "/")
    return Folder(raw) if Path(path).is_dir() else Archive.at(raw)


def look(walk: Walk, where: Where) -> Level:
    """What is in a folder; what cannot be read there is noted.

    Raises:
        SampleError: it is an archive that cannot be read.
    """
    if where.place.archive:
        walk.refs.note(b"%d %d" % where.place.archive)
    level = where.place.level(_WANTED.__contains__)
    _open_archives(level)
    if level.ignored[b".cls"] and where.place.kind != "folder":
        shown = os.fsdecode(where.name) or "the source"
        raise SourceError(f"{shown!r} holds WebDataset samples (.cls files): give --from webdataset")
    for suffix, count in level.ignored.items():
        walk.ignored[os.fsdecode(suffix)] += count
    walk.notices += [f"{os.fsdecode(where.name)!r} {notice}" for notice in level.notices]
    for name, failure, reason in level.refused:
        problem(walk, where, name, failure, reason)
    return level


def _open_archives(level: Level) -> None:
    """Turn archive files into folders."""
    for name, path in level.archives:
        try:
            level.folders.append((name, Archive.at(path)))
        except OSError:
            level.refused.append((name, "unreadable", "the system refused to open it"))
    level.archives.clear()
    level.folders.sort(key=lambda item: item[0])


def problem(walk: Walk, where: Where, name: bytes, failure: str, reason: str) -> None:
    """Note what cannot be a sample; an empty name is the folder itself."""
    path = b"/".join(part for part in (where.name, name) if part)
    split = walk.splits[where.split] if where.split >= 0 else None
    walk.problems.append(Problem(os.fsdecode(path), failure, reason, split=split))


def take(walk: Walk, where: Where, level: Level) -> None:
    """Files of one folder become refs."""
    files = level.files
    for suffix, count in Counter(map(suffix_of, files.names)).items():
        walk.suffixes[suffix.decode()] += count
    prefix = where.name + b"/" if where.name else b""
    common = Common(prefix, where.label, where.split, where.source, where.outer)
    walk.refs.add(files.names, Places(files.sizes, files.mtimes, files.offsets, files.packed, files.crcs), common)
