"""Folders of images, in torchvision's conventions; tar and zip archives are folders too.

Classes are the sorted first-level folders; everything below one belongs to it. A folder without sub-folders has no
classes. When *all* first-level folders are split names, each is a split with the classes below it. Several sources are
laid over each other: one list of classes, one set of splits.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packer.sample import RawSample, Ref
from packer.sources.base import Listing
from packer.sources.files import read_ref
from packer.sources.refs import prefixes_of
from packer.sources.tree import suffix_of
from packer.sources.walk import EXTENSIONS, Walk, Where, look, problem, root_of, take
from packer_reader.errors import SampleError, SourceError
from packer_reader.format.columns import canonical_json

if TYPE_CHECKING:
    from packer.sources.refs import RefWriter
    from packer.sources.tree import Level, Place

__all__ = ["SPLIT_NAMES", "ImageFolder"]

_SPLITS = {
    "train": ["train", "training"],
    "val": ["val", "valid", "validation", "dev"],
    "test": ["test", "testing", "eval", "evaluation"],
}
SPLIT_NAMES = {name: split for split, names in _SPLITS.items() for name in names}


@dataclass(frozen=True)
class ImageFolder:
    """Folders or archives of images, with or without class folders and split folders."""

    roots: tuple[str, ...]
    known: tuple[str, ...] = ()
    """Classes that keep their index, in order; others come behind them."""
    type: str = "imagefolder"

    def scan(self, refs: RefWriter) -> Listing:
        """List the images in sorted order; see `Source.scan`."""
        walk = Walk(refs)
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
        return RawSample(ref, read_ref(self.roots[ref.source], ref), ref.label)

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """See `Source.prefixes`."""
        return prefixes_of(self.roots)

    def _nothing(self, walk: Walk) -> str:
        seen = ", ".join(f"{count} {suffix or 'without extension'}" for suffix, count in walk.ignored.most_common(5))
        where = ", ".join(map(repr, self.roots))
        return (
            f"no images in {where} (found: {seen or 'nothing'}): give the folder that holds the class folders; "
            f"images are {' '.join(sorted(EXTENSIONS))}; --from text takes documents"
        )

    def _top(self, walk: Walk, number: int) -> tuple[Where, Level]:
        root = self.roots[number]
        where = Where(root_of(root), number)
        try:
            level = look(walk, where)
        except SampleError as error:
            raise SourceError(f"{root!r}: {error.reason}: check the file") from None
        only = level.folders[0][0] if len(level.folders) == 1 and not level.files.names else b""
        if where.place.archive and only and not _split_of(only):
            # Archives are usually made of a folder, not of its content.
            inner = where.inside(*level.folders[0], outer=0)
            below = look(Walk(walk.refs), inner)
            if below.folders and not below.files.names:
                where, level = inner, look(walk, inner)
        _leave_out_archives(walk, where, level)
        return where, level

    def _are_splits(self, level: Level) -> bool:
        return bool(level.folders) and all(_split_of(name) for name, _ in level.folders)

    def _scan_splits(self, walk: Walk, tops: list[tuple[Where, Level]]) -> tuple[str, ...] | None:
        found: dict[str, list[tuple[Where, Level]]] = {}
        for where, level in tops:
            self._check_once([os.fsdecode(name) for name, _ in level.folders], self.roots[where.source])
            for name, place in level.folders:
                split = _split_of(name)
                inner = where.inside(name, place)
                below = self._look_at_split(walk, inner)
                _leave_out_archives(walk, inner, below)
                found.setdefault(split, []).append((inner, below))
        walk.splits = tuple(found)
        classes = self._classes(walk, [level for levels in found.values() for _, level in levels])
        for number, split in enumerate(walk.splits):
            for where, level in found[split]:
                self._scan_level(walk, replace(where, split=number), level)
        for where, level in tops:
            self._refuse(walk, where, level, "the file is in no split folder")
        return classes

    def _look_at_split(self, walk: Walk, where: Where) -> Level:
        try:
            return look(walk, where)
        except SampleError as error:
            name = os.fsdecode(where.name)
            raise SourceError(
                f"split {name!r} in {self.roots[where.source]!r}: {error.reason}: check the file"
            ) from None

    def _check_once(self, folders: list[str], root: str) -> None:
        """Refuse two folders that are the same split."""
        splits = [_split_of(os.fsencode(folder)) for folder in folders]
        for split, count in Counter(splits).items():
            if count > 1:
                twice = [folder for folder, each in zip(folders, splits, strict=True) if each == split]
                raise SourceError(f"folders {twice!r} in {root!r} are the same split {split!r}: rename or merge them")

    def _scan_classes(self, walk: Walk, tops: list[tuple[Where, Level]]) -> tuple[str, ...] | None:
        classes = self._classes(walk, [level for _, level in tops])
        for where, level in tops:
            self._scan_level(walk, where, level)
        return classes

    def _classes(self, walk: Walk, levels: list[Level]) -> tuple[str, ...] | None:
        """All class names by index: the known ones first."""
        names = {_class_of(name, place) for level in levels for name, place in level.folders}
        known = [os.fsencode(name) for name in self.known]
        ordered = [*known, *sorted(names - set(known))]
        walk.labels = {name: label for label, name in enumerate(ordered)}
        return tuple(os.fsdecode(name) for name in ordered) or None

    def _scan_level(self, walk: Walk, where: Where, level: Level) -> None:
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
            take(walk, where, level)

    def _walk(self, walk: Walk, top: Where) -> None:
        """Everything below a class folder: its files, then its folders.

        A stack instead of recursion, since folders may be nested a thousand deep.
        """
        stack = [top]
        while stack:
            where = stack.pop()
            try:
                level = look(walk, where)
            except SampleError as error:
                problem(walk, where, b"", error.failure, error.reason)
                continue
            take(walk, where, level)
            stack += [where.inside(name, place) for name, place in reversed(level.folders)]

    def _refuse(self, walk: Walk, where: Where, level: Level, reason: str) -> None:
        for name in level.files.names:
            problem(walk, where, name, "no-class", reason)


def _leave_out_archives(walk: Walk, where: Where, level: Level) -> None:
    """Archives beside class or split folders are what those were unpacked from, rather than classes."""
    folders = {_split_of(name) for name, place in level.folders if place.kind != "archive"}
    splits = bool(folders) and all(folders)
    stray = [
        name
        for name, place in level.folders
        if place.kind == "archive" and not (splits and _split_of(name) and _split_of(name) not in folders)
    ]
    if not stray or not folders:
        return
    level.folders = [(name, place) for name, place in level.folders if name not in stray]
    for name in stray:
        walk.ignored[suffix_of(name).decode()] += 1
        shown = os.fsdecode(b"/".join(part for part in (where.name, name) if part))
        walk.notices.append(f"{shown!r} lies beside folders and was left out; to have it read, give it as a source")


def _split_of(name: bytes) -> str:
    return SPLIT_NAMES.get(os.fsdecode(name).lower().removesuffix(".tar").removesuffix(".zip"), "")


def _class_of(name: bytes, place: Place) -> bytes:
    """A class folder's name; an archive's without its extension."""
    return name[: -len(suffix_of(name))] if place.kind == "archive" else name
