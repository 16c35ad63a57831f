"""Boxes as COCO has them: a JSON file of images, annotations and categories.

A source is that file, or a folder with `annotations/instances_SPLIT.json` (every split of it). Boxes `[x, y, w, h]`
become x1, y1, x2, y2; category ids, which have gaps, become class indices in the order of their ids, over all splits.
Images without annotations are kept: they are examples of nothing. Annotations that are no box are left out and
counted.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.fields import Extra
from packer.sample import Problem, RawSample, Ref
from packer.sources.base import Listing
from packer.sources.files import read_ref
from packer.sources.imagefolder import SPLIT_NAMES
from packer.sources.refs import Common, Places
from packer.sources.tree import suffix_of
from packer_reader.errors import SampleError, SourceError
from packer_reader.format.columns import canonical_json

if TYPE_CHECKING:
    from packer.sources.refs import RefWriter

__all__ = ["Coco", "coco_files"]

_CHUNK = 1 << 13
_FAR = 1e9
"""Pixels beyond which a corner means nothing."""
_A = {int: "a whole number", str: "a text"}
_INSTANCES = re.compile(r"instances_([a-z]+)[0-9]*\.json")


def coco_files(path: str) -> tuple[tuple[str, str], ...]:
    """Annotation files of a source with their splits, which are empty for a file alone; none where it has none."""
    place = Path(path)
    if place.is_file():
        return ((place.name, ""),) if place.suffix == ".json" and _is_coco(place) else ()
    found = []
    for file in sorted(place.glob("annotations/instances_*.json")):
        name = _INSTANCES.fullmatch(file.name)
        if name is not None and name[1] in SPLIT_NAMES:
            found.append((f"annotations/{file.name}", SPLIT_NAMES[name[1]]))
    return tuple(found) if len({split for _, split in found}) == len(found) else ()


def _is_coco(place: Path) -> bool:
    """By the keys that such a file begins with somewhere."""
    with place.open("rb") as file:
        head = file.read(1 << 16)
    return b'"images"' in head or b'"annotations"' in head or b'"categories"' in head


@dataclass(frozen=True)
class Coco:
    """Annotation files and the images they are about."""

    root: str
    """The folder that names are relative to."""
    files: tuple[tuple[str, str], ...]
    """Each file's path below the root, and its split."""
    known: tuple[str, ...] = ()
    """Classes that keep their index."""
    type: str = "coco"
    prefixes: tuple[bytes, ...] = (b"",)

    def scan(self, refs: RefWriter) -> Listing:
        """List the images of all files, in the files' order; see `Source.scan`."""
        documents = [self._load(file) for file, _ in self.files]
        names: dict[str, int] = {}
        for document in documents:
            for category in sorted(document["categories"], key=lambda one: one["id"]):
                names.setdefault(str(category["name"]), int(category["id"]))
        classes = (*self.known, *(name for name in names if name not in self.known))
        splits = tuple(split for _, split in self.files if split)
        problems, suffixes, odd = list[Problem](), Counter[str](), 0
        for (file, split), document in zip(self.files, documents, strict=True):
            numbers = {int(one["id"]): classes.index(str(one["name"])) for one in document["categories"]}
            boxes, bad = _by_image(document["annotations"], numbers)
            odd += bad
            held: list[tuple[bytes, int, int, bytes]] = []
            folder = self._folder(file, split, document["images"])
            for image in document["images"]:
                try:
                    held.append(self._row(image, folder, boxes.pop(image.get("id"), None)))
                except SampleError as error:
                    name = str(image.get("file_name", f"image {image.get('id')}"))
                    problems.append(Problem(name, error.failure, error.reason, split=split or None))
            odd += sum(len(left["labels"]) for left in boxes.values())
            _add(refs, held, splits.index(split) if split else -1)
            suffixes.update(suffix_of(name).decode("ascii", "replace") for name, *_ in held)
        if not refs.count:
            first = f" (the first: {problems[0].name!r}, {problems[0].reason})" if problems else ""
            raise SourceError(f"no image of {self.files[0][0]!r} can be used{first}: check where the images lie")
        return Listing(
            type=self.type,
            reason=f"annotations in {', '.join(repr(file) for file, _ in self.files)}",
            classes=classes,
            labelled=False,
            splits=splits,
            found=refs.count + len(problems),
            bytes=refs.bytes,
            digest=refs.digest(canonical_json([p.to_json() for p in problems] + [list(classes)])),
            suffixes=suffixes,
            ignored=Counter(),
            extras=(Extra("boxes", "boxes"),),
            problems=problems,
            notices=[f"{odd} annotations are no boxes, or of no image or category, and were left out"] if odd else [],
        )

    def read(self, ref: Ref) -> RawSample:
        """Read an image with its boxes; see `Source.read`."""
        return RawSample(ref, read_ref(self.root, ref), -1, {"boxes": json.loads(ref.extra)})

    def _load(self, file: str) -> dict[str, Any]:
        try:
            document = json.loads((Path(self.root) / file).read_bytes())
        except OSError as error:
            raise SourceError(f"cannot read {file!r}: {error.strerror}; check its permissions") from None
        except (ValueError, RecursionError):
            document = None
        keys = ("images", "annotations", "categories")
        if not isinstance(document, dict) or not all(isinstance(document.get(key), list) for key in keys):
            raise SourceError(f"{file!r} is no COCO file: it must be JSON with the lists {', '.join(keys)}")
        wanted = {"images": {"id"}, "categories": {"id", "name"}}
        for key, needed in wanted.items():
            if not all(isinstance(one, dict) and needed <= one.keys() for one in document[key]):
                raise SourceError(f"{file!r}: each of its {key} must have {' and '.join(sorted(needed))}")
            for name in needed:
                values = [one[name] for one in document[key]]
                kind = int if name == "id" else str
                if not all(isinstance(value, kind) for value in values) or len(set(values)) < len(values):
                    raise SourceError(f"{file!r}: {name} of its {key} must be {_A[kind]}, each once")
        return document

    def _folder(self, file: str, split: str, images: list[Any]) -> str:
        """Where the images lie, relative to the root: the first place that has the first one."""
        if not images:
            return ""
        stem = Path(file).stem.removeprefix("instances_")
        first = str(images[0].get("file_name", ""))
        for folder in ("", "images", stem, f"images/{stem}", split, f"images/{split}"):
            if first and (Path(self.root) / folder / first).is_file():
                return folder
        return stem if (Path(self.root) / stem).is_dir() else ""

    def _row(
        self, image: dict[str, Any], folder: str, boxes: dict[str, list[Any]] | None
    ) -> tuple[bytes, int, int, bytes]:
        given = image.get("file_name")
        if (
            not isinstance(given, str)
            or not given
            or "\0" in given
            or given.startswith("/")
            or ".." in given.split("/")
        ):
            raise SampleError("no-path", f"file_name is {given!r}, it must be a path below the images' folder")
        name = f"{folder}/{given}" if folder else given
        try:
            found = os.stat(f"{self.root}/{name}")  # noqa: PTH116 - names may be no valid text
        except (OSError, ValueError):
            raise SampleError("vanished", "the file is not there") from None
        note: dict[str, Any] = boxes or {"boxes": [], "labels": [], "iscrowd": []}
        if isinstance(image.get("height"), int) and isinstance(image.get("width"), int):
            note = note | {"size": [image["height"], image["width"]]}
        return os.fsencode(name), found.st_size, found.st_mtime_ns, json.dumps(note).encode()


def _by_image(annotations: list[Any], numbers: dict[int, int]) -> tuple[dict[Any, dict[str, list[Any]]], int]:
    """Boxes, labels and crowd flags by image, and how many annotations are none."""
    found: dict[Any, dict[str, list[Any]]] = {}
    odd = 0
    for one in annotations:
        box: Any = one.get("bbox") if isinstance(one, dict) else None
        category: Any = one.get("category_id") if isinstance(one, dict) else None
        if not _is_box(box) or not isinstance(category, int) or category not in numbers:
            odd += 1
            continue
        x, y, width, height = box
        number = one.get("image_id")
        image = found.setdefault(
            number if isinstance(number, int) else None, {"boxes": [], "labels": [], "iscrowd": []}
        )
        image["boxes"].append([x, y, x + width, y + height])
        image["labels"].append(numbers[category])
        image["iscrowd"].append(int(bool(one.get("iscrowd"))))
    return found, odd


def _is_box(box: Any) -> bool:
    return (
        isinstance(box, list)
        and len(box) == 4
        and all(isinstance(n, int | float) and not isinstance(n, bool) and -_FAR < n < _FAR for n in box)
        and box[2] > 0
        and box[3] > 0
    )


def _add(refs: RefWriter, held: list[tuple[bytes, int, int, bytes]], split: int) -> None:
    for start in range(0, len(held), _CHUNK):
        names, sizes, mtimes, notes = map(list, zip(*held[start : start + _CHUNK], strict=True))
        refs.add(names, Places(sizes, mtimes, extras=notes), Common(split=split))
