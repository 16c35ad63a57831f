"""Images with masks: two folders side by side whose files have the same names but for their endings.

`images/` and `masks/`, as most people name them, or the names of Pascal VOC (JPEGImages, SegmentationClass), Cityscapes
(leftImg8bit, gtFine), ADE20K (images, annotations) and nnU-Net (imagesTr, labelsTr). Files are paired by their exact
path without the last extension, never by their place in a listing; the data sets' own endings (`_leftImg8bit`,
`_gtFine_labelIds`, `_0000`) do not count. Folders train/ val/ test/ below are splits.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packer.fields import Extra
from packer.sample import Problem, RawSample, Ref
from packer.sources.base import Listing
from packer.sources.files import read_ref
from packer.sources.imagefolder import SPLIT_NAMES
from packer.sources.refs import Common, Places
from packer.sources.tree import Folder, is_folder, is_junk, suffix_of
from packer.sources.walk import EXTENSIONS
from packer_reader.errors import SourceError
from packer_reader.format.columns import canonical_json

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from packer.sources.refs import RefWriter

__all__ = ["Pairs", "pair_folders"]

_IMAGES = ("images", "imgs", "image", "img", "jpegimages", "leftimg8bit", "imagestr")
_MASKS = ("masks", "mask", "annotations", "labels", "segmentationclass", "gtfine", "labelstr")
_OWN = (("JPEGImages", "SegmentationClass"), ("leftImg8bit", "gtFine"), ("imagesTr", "labelsTr"))
"""Data sets that have other folders as well."""
_IMAGE_ENDINGS = (b"_leftImg8bit", b"_0000")
_MASK_ENDINGS = (b"_gtFine_labelIds", b"_mask")
_OTHER_MASKS = (b"_gtFine_color", b"_gtFine_instanceIds", b"_gtFine_labelTrainIds")
"""Cityscapes keeps other pictures beside the label ids."""
_WANTED = frozenset(extension.encode() for extension in EXTENSIONS)
_CHUNK = 1 << 14


@dataclass(frozen=True)
class _File:
    path: bytes
    """Relative to the source."""
    size: int
    mtime_ns: int


def pair_folders(root: str) -> tuple[str, str] | None:
    """The folders of images and of masks in a source; None where it has not exactly these."""
    try:
        folders = [
            entry.name for entry in os.scandir(root) if is_folder(entry) and not is_junk(os.fsencode(entry.name))
        ]
    except OSError:
        return None
    for own in _OWN:
        if set(own) <= set(folders):
            return own
    images = [name for name in folders if name.lower() in _IMAGES]
    masks = [name for name in folders if name.lower() in _MASKS]
    if len(images) != 1 or len(masks) != 1 or len(folders) > 2:
        return None  # folders beside them are classes, unless a data set is known to have more
    return images[0], masks[0]


@dataclass(frozen=True)
class Pairs:
    """A folder of images and a folder of masks."""

    root: str
    images: str
    masks: str
    type: str = "pairs"
    prefixes: tuple[bytes, ...] = (b"",)

    def scan(self, refs: RefWriter) -> Listing:
        """List the images that have a mask, in sorted order; see `Source.scan`."""
        problems, ignored, suffixes = list[Problem](), Counter[str](), Counter[str]()
        notices = list[str]()
        images, masks = _renamed(
            self._files(self.images, problems, ignored, notices), self._files(self.masks, [], ignored, notices)
        )
        tops = {stem.split(b"/")[0] for stem in images if b"/" in stem}
        split_of = {top: SPLIT_NAMES.get(os.fsdecode(top).lower(), "") for top in tops}
        split = bool(tops) and all(split_of.values()) and all(b"/" in stem for stem in images)
        splits = tuple(sorted(set(split_of.values()))) if split else ()
        pairs: dict[int, list[tuple[_File, _File]]] = {}
        for stem in sorted(images):
            number = splits.index(split_of[stem.split(b"/")[0]]) if split else -1
            reason = _unpaired(images[stem], masks.get(stem, []))
            if reason:
                where = splits[number] if split else None
                problems += [Problem(os.fsdecode(one.path), "mismatch", reason, split=where) for one in images[stem]]
                continue
            pairs.setdefault(number, []).append((images[stem][0], masks[stem][0]))
            suffixes[suffix_of(images[stem][0].path).decode()] += 1
        for number, found in sorted(pairs.items()):
            _add(refs, found, number)
        if not pairs:
            raise SourceError(
                f"no image in {self.images!r} has a mask of the same name in {self.masks!r} ({len(images)} images, "
                f"{len(masks)} masks): names must agree but for the extension; --from imagefolder takes classes"
            )
        alone = sorted(masks.keys() - images.keys())
        first = os.fsdecode(masks[alone[0]][0].path) if alone else ""
        notices += [f"{len(alone)} masks have no image (the first: {first!r})"] if alone else []
        return Listing(
            type=self.type,
            reason=f"images in {self.images!r}, masks in {self.masks!r}",
            classes=None,
            labelled=False,
            splits=splits,
            found=refs.count + len(problems),
            bytes=refs.bytes,
            digest=refs.digest(canonical_json([problem.to_json() for problem in problems])),
            suffixes=suffixes,
            ignored=ignored,
            extras=(Extra("mask", "mask"),),
            problems=problems,
            notices=notices,
        )

    def read(self, ref: Ref) -> RawSample:
        """Read an image and its mask; see `Source.read`."""
        path, size, mtime_ns = json.loads(ref.extra)
        mask = Ref(path, size, mtime_ns, -1)
        return RawSample(ref, read_ref(self.root, ref), -1, {"mask": read_ref(self.root, mask)})

    def _files(
        self, top: str, problems: list[Problem], ignored: Counter[str], notices: list[str]
    ) -> dict[bytes, list[_File]]:
        """Files below one folder by their path without extension."""
        found: dict[bytes, list[_File]] = {}
        start = os.fsencode(top)
        stack = [(b"", Folder(os.fsencode(self.root) + b"/" + start))]
        while stack:
            above, folder = stack.pop()
            level = folder.level(_WANTED.__contains__)
            for suffix, count in level.ignored.items():
                ignored[os.fsdecode(suffix)] += count
            for name, failure, reason in level.refused:
                problems.append(Problem(os.fsdecode(start + b"/" + above + name), failure, reason))
            for name, _ in level.archives:
                notices.append(f"{os.fsdecode(start + b'/' + above + name)!r} was left out: unpack it")
            for name, size, mtime_ns in zip(level.files.names, level.files.sizes, level.files.mtimes, strict=True):
                stem = name[: name.rindex(b".")]
                found.setdefault(above + stem, []).append(_File(start + b"/" + above + name, size, mtime_ns))
            stack += [(above + name + b"/", place) for name, place in level.folders if isinstance(place, Folder)]
        return found


def _renamed(
    images: dict[bytes, list[_File]], masks: dict[bytes, list[_File]]
) -> tuple[dict[bytes, list[_File]], dict[bytes, list[_File]]]:
    """The same, under one stem where only the data sets' own endings differ; exact pairs stay what they are."""
    both = images.keys() & masks.keys()
    return _stripped(images, both, _IMAGE_ENDINGS), _stripped(
        {stem: files for stem, files in masks.items() if stem in both or not stem.endswith(_OTHER_MASKS)},
        both,
        _MASK_ENDINGS,
    )


def _stripped(
    files: dict[bytes, list[_File]], exact: AbstractSet[bytes], endings: tuple[bytes, ...]
) -> dict[bytes, list[_File]]:
    found: dict[bytes, list[_File]] = {}
    for stem, same in files.items():
        short = stem
        if stem not in exact:
            for ending in endings:
                short = short.removesuffix(ending)
        found.setdefault(stem if short in exact else short, []).extend(same)
    return found


def _unpaired(images: list[_File], masks: list[_File]) -> str:
    """Why an image has no mask of its own; empty where it has."""
    if len(images) > 1:
        return f"{len(images)} images have this name but for the extension"
    if not masks:
        return "no mask has this name"
    if len(masks) > 1:
        return f"{len(masks)} masks have this name but for the extension"
    return ""


def _add(refs: RefWriter, pairs: list[tuple[_File, _File]], split: int) -> None:
    for start in range(0, len(pairs), _CHUNK):
        part = pairs[start : start + _CHUNK]
        notes = [canonical_json([os.fsdecode(mask.path), mask.size, mask.mtime_ns]) for _, mask in part]
        places = Places([image.size for image, _ in part], [image.mtime_ns for image, _ in part], extras=notes)
        refs.add([image.path for image, _ in part], places, Common(split=split))
