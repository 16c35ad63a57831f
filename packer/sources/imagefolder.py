"""Folders of images, in torchvision's conventions; tar and zip archives are folders too.

Classes are the sorted first-level folders; everything below one belongs to it. A folder without sub-folders has no
classes. When *all* first-level folders are split names, each is a split with the classes below it. Several sources are
laid over each other: one list of classes, one set of splits.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from packer.sample import Problem, RawSample, Ref
from packer.sources.archive import Archive
from packer.sources.base import Listing
from packer.sources.files import read_ref
from packer.sources.refs import Common, Places
from packer.sources.tree import Folder, Level, Place, suffix_of
from packer_reader.errors import SampleError, SourceError
from packer_reader.format.columns import canonical_json

if TYPE_CHECKING:
    from packer.sources.refs import RefWriter

__all__ = ["EXTENSIONS", "SPLIT_NAMES", "ImageFolder"]

EXTENSIONS = frozenset(
    [
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".png",
        ".bmp",
        ".dib",
        ".gif",
        ".webp",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".pbm",
        ".pnm",
        ".avif",
        ".jp2",
    ]
)
"""What counts as an image, whatever the case; the content decides how it is decoded."""
_WANTED = frozenset(extension.encode() for extension in EXTENSIONS)
_SPLITS = {
    "train": ["train", "training"],
    "val": ["val", "valid", "validation", "dev"],
    "test": ["test", "testing", "eval", "evaluation"],
}
SPLIT_NAMES = {name: split for split, names in _SPLITS.items() for name in names}


@dataclass
class _Walk:
    """The state of one scan."""

    refs: RefWriter
    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    suffixes: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    labels: dict[bytes, int] = field(default_factory=dict)
    splits: tuple[str, ...] = ()
    prefixes: tuple[bytes, ...] = ()
    """By source, what its names begin with."""

    @property
    def found(self) -> int:
        """Samples so far."""
        return self.refs.count + len(self.problems)


@dataclass(frozen=True)
class _Where:
    """A folder of a source, and what its samples have in common."""

    place: Place
    source: int
    name: bytes = b""
    """Relative to the source; empty for the source itself."""
    outer: int = 0
    """Bytes of the name that lead to the archive file it lies in."""
    split: int = -1
    label: int = -1

    def inside(self, name: bytes, place: Place, **changes: int) -> _Where:
        path = f"{os.fsdecode(self.name)}/" if self.name else ""
        path += os.fsdecode(name)
        full = os.fsencode(path)
        same = {"outer": self.outer, "split": self.split, "label": self.label} | changes
        if place.archive:
            same["outer"] = len(full)
        return _Where(place, self.source, full, **same)


@dataclass(frozen=True)
class ImageFolder:
    """Folders or archives of images, with or without class folders and split folders."""

    roots: tuple[str, ...]
    known: tuple[str, ...] = ()
    """Classes that keep their index, in order; others come behind them."""
    named: bool = False
    """Whether names begin with that of their source, since they would not differ otherwise."""
    type: str = "imagefolder"

    def scan(self, refs: RefWriter) -> Listing:
        """List the images in sorted order; see `Source.scan`."""
        walk = _Walk(refs, prefixes=self._prefixes)
        tops = [self._top(walk, number) for number in range(len(self.roots))]
        folders = [name for _, level in tops for name, _ in level.folders]
        splits = [self._are_splits(level) for _, level in tops]
        if any(splits) and not all(splits):
            odd = self.roots[splits.index(False)]
            raise SourceError(f"{odd!r} has no folders for splits, unlike the other sources: build it on its own")
        if all(splits):
            reason = f"all its folders are splits: {', '.join(os.fsdecode(name) for name in folders)}"
            classes = self._scan_splits(walk, tops)
        else:
            reason = f"{len(set(folders))} class folders" if folders else "images in one folder, without classes"
            classes = self._scan_classes(walk, tops)
        if not walk.found:
            raise SourceError(self._nothing(walk))
        return Listing(
            type=self.type,
            reason=reason,
            classes=classes,
            labelled=classes is not None,
            splits=walk.splits,
            found=walk.found,
            bytes=refs.bytes,
            digest=refs.digest(canonical_json([p.to_json() for p in walk.problems])),
            suffixes=walk.suffixes,
            ignored=walk.ignored,
            problems=walk.problems,
            notices=walk.notices,
        )

    def read(self, ref: Ref) -> RawSample:
        """Read the file of one image; see `Source.read`."""
        inner = replace(ref, name=ref.name[len(os.fsdecode(self._prefixes[ref.source])) :]) if self.named else ref
        return RawSample(ref, read_ref(self.roots[ref.source], inner), ref.label)

    @property
    def _prefixes(self) -> tuple[bytes, ...]:
        if not self.named:
            return (b"",) * len(self.roots)
        names = [PurePath(root).name for root in self.roots]
        if len(set(names)) < len(names):
            names = [PurePath(root).as_posix().strip("/") for root in self.roots]
        return tuple(os.fsencode(f"{name}/") for name in names)

    def _nothing(self, walk: _Walk) -> str:
        seen = ", ".join(f"{count} {suffix or 'without extension'}" for suffix, count in walk.ignored.most_common(5))
        where = ", ".join(map(repr, self.roots))
        return (
            f"no images in {where} (found: {seen or 'nothing'}): give the folder that holds the class folders; "
            f"images are {' '.join(sorted(EXTENSIONS))}"
        )

    def _top(self, walk: _Walk, number: int) -> tuple[_Where, Level]:
        root = self.roots[number]
        where = _Where(_root(root), number)
        try:
            level = _look(walk, where)
        except SampleError as error:
            raise SourceError(f"{root!r}: {error.reason}: check the file") from None
        if where.place.archive and len(level.folders) == 1 and not level.files.names:
            # Archives are usually made of a folder, not of its content.
            inner = where.inside(*level.folders[0], outer=0)
            below = _look(_Walk(walk.refs, prefixes=walk.prefixes), inner)
            if below.folders and not below.files.names:
                return inner, _look(walk, inner)
        return where, level

    def _are_splits(self, level: Level) -> bool:
        return bool(level.folders) and all(_split_of(name) for name, _ in level.folders)

    def _scan_splits(self, walk: _Walk, tops: list[tuple[_Where, Level]]) -> tuple[str, ...] | None:
        found: dict[str, list[tuple[_Where, Level]]] = {}
        for where, level in tops:
            self._check_once([os.fsdecode(name) for name, _ in level.folders], self.roots[where.source])
            for name, place in level.folders:
                split = _split_of(name)
                inner = where.inside(name, place)
                found.setdefault(split, []).append((inner, _look(walk, inner)))
        walk.splits = tuple(found)
        classes = self._classes(walk, [level for levels in found.values() for _, level in levels])
        for number, split in enumerate(walk.splits):
            for where, level in found[split]:
                self._scan_level(walk, replace(where, split=number), level)
        for where, level in tops:
            self._refuse(walk, where, level, "the file is in no split folder")
        return classes

    def _check_once(self, folders: list[str], root: str) -> None:
        """Refuse two folders that are the same split."""
        splits = [_split_of(os.fsencode(folder)) for folder in folders]
        for split, count in Counter(splits).items():
            if count > 1:
                twice = [folder for folder, each in zip(folders, splits, strict=True) if each == split]
                raise SourceError(f"folders {twice!r} in {root!r} are the same split {split!r}: rename or merge them")

    def _scan_classes(self, walk: _Walk, tops: list[tuple[_Where, Level]]) -> tuple[str, ...] | None:
        classes = self._classes(walk, [level for _, level in tops])
        for where, level in tops:
            self._scan_level(walk, where, level)
        return classes

    def _classes(self, walk: _Walk, levels: list[Level]) -> tuple[str, ...] | None:
        """All class names by index: the known ones first."""
        names = {_class_of(name, place) for level in levels for name, place in level.folders}
        known = [os.fsencode(name) for name in self.known]
        ordered = [*known, *sorted(names - set(known))]
        walk.labels = {name: label for label, name in enumerate(ordered)}
        return tuple(os.fsdecode(name) for name in ordered) or None

    def _scan_level(self, walk: _Walk, where: _Where, level: Level) -> None:
        """The folder that holds class folders, or images when there are no classes."""
        for name, place in level.folders:
            label = walk.labels[_class_of(name, place)]
            inner = where.inside(name, place, label=label)
            before = walk.found
            self._walk(walk, inner)
            if walk.found == before:
                shown = os.fsdecode(inner.name)
                walk.notices.append(f"class folder {shown!r} holds no image; it keeps its index {label}")
        if walk.labels:
            self._refuse(walk, where, level, "the file is in no class folder")
        else:
            self._take(walk, where, level)

    def _walk(self, walk: _Walk, top: _Where) -> None:
        """Everything below a class folder: its files, then its folders.

        A stack instead of recursion, since folders may be nested a thousand deep.
        """
        stack = [top]
        while stack:
            where = stack.pop()
            try:
                level = _look(walk, where)
            except SampleError as error:
                _problem(walk, where, b"", error.failure, error.reason)
                continue
            self._take(walk, where, level)
            stack += [where.inside(name, place) for name, place in reversed(level.folders)]

    def _take(self, walk: _Walk, where: _Where, level: Level) -> None:
        """Files of one folder become refs."""
        files = level.files
        for suffix, count in Counter(map(suffix_of, files.names)).items():
            walk.suffixes[suffix.decode()] += count
        prefix = walk.prefixes[where.source] + (where.name + b"/" if where.name else b"")
        common = Common(prefix, where.label, where.split, where.source, where.outer)
        walk.refs.add(files.names, Places(files.sizes, files.mtimes, files.offsets, files.packed), common)

    def _refuse(self, walk: _Walk, where: _Where, level: Level, reason: str) -> None:
        for name in level.files.names:
            _problem(walk, where, name, "no-class", reason)


def _root(path: str) -> Place:
    raw = os.fsencode(path.rstrip("/") or "/")
    return Folder(raw) if Path(path).is_dir() else Archive.at(raw)


def _look(walk: _Walk, where: _Where) -> Level:
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
        raise SourceError(f"{shown!r} holds WebDataset samples (.cls files): shards are not read as a source yet")
    for suffix, count in level.ignored.items():
        walk.ignored[os.fsdecode(suffix)] += count
    walk.notices += [f"{os.fsdecode(where.name)!r} {notice}" for notice in level.notices]
    for name, failure, reason in level.refused:
        _problem(walk, where, name, failure, reason)
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


def _problem(walk: _Walk, where: _Where, name: bytes, failure: str, reason: str) -> None:
    path = walk.prefixes[where.source] + b"/".join(part for part in (where.name, name) if part)
    split = walk.splits[where.split] if where.split >= 0 else None
    walk.problems.append(Problem(os.fsdecode(path), failure, reason, split=split))


def _split_of(name: bytes) -> str:
    return SPLIT_NAMES.get(os.fsdecode(name).lower().removesuffix(".tar").removesuffix(".zip"), "")


def _class_of(name: bytes, place: Place) -> bytes:
    """A class folder's name; an archive's without its extension."""
    return name[: -len(suffix_of(name))] if place.kind == "archive" else name
