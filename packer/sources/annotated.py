"""Boxes in a file beside each image: YOLO's text and Pascal VOC's XML.

YOLO: `images/` and `labels/` with the same paths; a line `class cx cy w h`, as shares of the image's sides; class names
in `data.yaml` or `classes.txt`. VOC: `JPEGImages/` and `Annotations/`; corners count from 1 and belong to the box, so
that x1 and y1 are one less here. An image without a file, or with an empty one, is an example of nothing. Lines that
are no box are left out and counted. Folders train/ val/ test/ below `images/` are splits.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from packer.fields import Extra
from packer.sample import Problem, RawSample, Ref
from packer.sources.base import Listing
from packer.sources.files import read_ref
from packer.sources.imagefolder import SPLIT_NAMES
from packer.sources.refs import Common, Places
from packer.sources.tree import Folder, suffix_of
from packer.sources.walk import EXTENSIONS
from packer_reader.errors import SampleError, SourceError
from packer_reader.format.columns import canonical_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packer.sources.refs import RefWriter

__all__ = ["Annotated", "annotated_folders"]

_WANTED = frozenset(extension.encode() for extension in EXTENSIONS)
_CHUNK = 1 << 13
_LOOKED_AT = 50
"""Files of `labels/` that say whether they are YOLO's."""


def annotated_folders(root: str) -> tuple[str, str, str] | None:
    """Type, folder of the images and folder of the annotations; None where there are none of these."""
    place = Path(root)
    if (place / "JPEGImages").is_dir() and (place / "Annotations").is_dir():
        return "voc", "JPEGImages", "Annotations"
    if (place / "images").is_dir() and (place / "labels").is_dir():
        seen = 0
        for _, _, names in os.walk(place / "labels"):
            if any(name.endswith(".txt") for name in names):
                return "yolo", "images", "labels"
            seen += len(names)
            if seen > _LOOKED_AT:
                break
    return None


@dataclass
class _Boxes:
    """What the annotation files of a whole source say."""

    names: dict[str, int]
    """Class names by index as far as they are known."""
    odd: int = 0


@dataclass(frozen=True)
class Annotated:
    """A folder of images and one of annotation files."""

    root: str
    type: str
    """`yolo` or `voc`."""
    images: str
    notes: str
    known: tuple[str, ...] = ()
    """Classes that keep their index."""
    prefixes: tuple[bytes, ...] = (b"",)

    def scan(self, refs: RefWriter) -> Listing:
        """List the images in sorted order, with their boxes; see `Source.scan`."""
        problems, suffixes = list[Problem](), Counter[str]()
        images = sorted(self._images(problems))
        tops = {path.split(b"/")[0] for path, _, _ in images if b"/" in path}
        split_of = {top: SPLIT_NAMES.get(os.fsdecode(top).lower(), "") for top in tops}
        split = bool(tops) and all(split_of.values()) and all(b"/" in path for path, _, _ in images)
        splits = tuple(sorted(set(split_of.values()))) if split else ()
        found = _Boxes({name: number for number, name in enumerate(self.known or self._named())})
        if self.type == "voc" and not self.known:
            found.names = {name: number for number, name in enumerate(sorted(self._used(images)))}
        held: dict[int, list[tuple[bytes, int, int, bytes]]] = {}
        for path, size, mtime_ns in images:
            number = splits.index(split_of[path.split(b"/")[0]]) if split else -1
            name = os.fsencode(self.images) + b"/" + path
            try:
                note = self._note(path, found)
            except SampleError as error:
                where = splits[number] if split else None
                problems.append(Problem(os.fsdecode(name), error.failure, error.reason, split=where))
                continue
            held.setdefault(number, []).append((name, size, mtime_ns, note))
            suffixes[suffix_of(path).decode()] += 1
        for number, rows in sorted(held.items()):
            for start in range(0, len(rows), _CHUNK):
                names_, sizes, mtimes, notes = map(list, zip(*rows[start : start + _CHUNK], strict=True))
                refs.add(names_, Places(sizes, mtimes, extras=notes), Common(split=number))
        if not refs.count:
            raise SourceError(f"no image of {self.images!r} in {self.root!r} can be used: check the folder")
        classes = tuple(found.names)
        return Listing(
            type=self.type,
            reason=f"images in {self.images!r}, boxes in {self.notes!r}",
            classes=classes or None,
            labelled=False,
            splits=splits,
            found=refs.count + len(problems),
            bytes=refs.bytes,
            digest=refs.digest(canonical_json([p.to_json() for p in problems] + [list(classes)])),
            suffixes=suffixes,
            ignored=Counter(),
            extras=(Extra("boxes", "boxes"),),
            problems=problems,
            notices=[f"{found.odd} annotations are no boxes and were left out"] if found.odd else [],
        )

    def read(self, ref: Ref) -> RawSample:
        """Read an image with its boxes; see `Source.read`."""
        return RawSample(ref, read_ref(self.root, ref), -1, {"boxes": json.loads(ref.extra)})

    def _images(self, problems: list[Problem]) -> Iterator[tuple[bytes, int, int]]:
        start = os.fsencode(self.images)
        stack = [(b"", Folder(os.fsencode(self.root) + b"/" + start))]
        while stack:
            above, folder = stack.pop()
            level = folder.level(_WANTED.__contains__)
            for name, failure, reason in level.refused:
                problems.append(Problem(os.fsdecode(start + b"/" + above + name), failure, reason))
            for name, size, mtime_ns in zip(level.files.names, level.files.sizes, level.files.mtimes, strict=True):
                yield above + name, size, mtime_ns
            stack += [(above + name + b"/", place) for name, place in level.folders if isinstance(place, Folder)]

    def _named(self) -> list[str]:
        """Class names that lie beside the folders."""
        place = Path(self.root) / "classes.txt"
        if place.is_file():
            return [line for line in place.read_text(encoding="utf-8", errors="surrogateescape").splitlines() if line]
        return _yaml_names(Path(self.root) / "data.yaml")

    def _used(self, images: list[tuple[bytes, int, int]]) -> set[str]:
        """Class names of all annotations."""
        names: set[str] = set()
        for path, _, _ in images:
            with suppress(SampleError):  # said when it is listed
                names.update(name for name, _ in self._objects(path, _Boxes({}), []))
        return names

    def _note(self, path: bytes, found: _Boxes) -> bytes:
        size: list[int] = []
        boxes = list(self._objects(path, found, size))
        note: dict[str, Any] = {"boxes": [], "labels": []}
        for name, box in boxes:
            if name not in found.names:
                if self.type == "voc":
                    found.odd += 1
                    continue
                for number in range(len(found.names), int(name) + 1):
                    found.names[str(number)] = number
            note["boxes"].append(box)
            note["labels"].append(found.names[name])
        if self.type == "yolo":
            note["shares"] = True
        return json.dumps(note | ({"size": size} if size else {})).encode()

    def _objects(self, path: bytes, found: _Boxes, size: list[int]) -> Iterator[tuple[str, list[float]]]:
        """Class and box of each line or object; `size` takes what the file says of the image's.

        Raises:
            SampleError: the file cannot be read as what it is.
        """
        stem = path[: path.rindex(b".")]
        place = Path(
            os.fsdecode(
                os.fsencode(f"{self.root}/{self.notes}/") + stem + (b".txt" if self.type == "yolo" else b".xml")
            )
        )
        try:
            data = place.read_bytes()
        except FileNotFoundError:
            return
        except OSError:
            raise SampleError("unreadable", "the system refused to read its annotations") from None
        if self.type == "voc":
            yield from _voc(data, found, size)
            return
        names = list(found.names)
        for line in data.decode("utf-8", "replace").splitlines():
            if not line.strip():
                continue
            box = _yolo(line.split())
            if box is None:
                found.odd += 1
            else:
                yield names[box[0]] if box[0] < len(names) else str(box[0]), box[1]


def _yolo(cells: list[str]) -> tuple[int, list[float]] | None:
    """Class and corners, as shares of the sides; None for what is no box."""
    try:
        label, (x, y, width, height) = int(cells[0]), map(float, cells[1:5])
    except (ValueError, IndexError):
        return None
    fine = len(cells) == 5 and all(map(math.isfinite, (x, y))) and 0 < width <= 1 and 0 < height <= 1
    if not fine or not 0 <= label < 1 << 16:
        return None
    return label, [x - width / 2, y - height / 2, x + width / 2, y + height / 2]


def _voc(data: bytes, found: _Boxes, size: list[int]) -> Iterator[tuple[str, list[float]]]:
    try:
        tree = ET.fromstring(data)  # noqa: S314 - expat since 2.4.1 refuses what blows up
    except ET.ParseError:
        raise SampleError("corrupt", "its annotations are not XML") from None
    sides = [tree.findtext(f"size/{side}", "0") for side in ("height", "width")]
    if all(side.isdigit() and int(side) for side in sides):
        size[:] = map(int, sides)
    for one in tree.iter("object"):
        corners = [one.findtext(f"bndbox/{name}", "") for name in ("xmin", "ymin", "xmax", "ymax")]
        try:
            x1, y1, x2, y2 = map(float, corners)
        except ValueError:
            x1 = x2 = y1 = y2 = math.nan
        if not (x2 >= x1 and y2 >= y1 and math.isfinite(x1 + y1 + x2 + y2)):
            found.odd += 1
            continue
        yield one.findtext("name", "").strip(), [x1 - 1, y1 - 1, x2, y2]


def _yaml_names(path: Path) -> list[str]:
    """`names` of YOLO's data.yaml: a list, or numbers to names.

    Raises:
        SourceError: it cannot be understood.
    """
    if not path.is_file():
        return []
    try:
        import yaml  # noqa: PLC0415 - only this file is YAML

        names = (yaml.safe_load(path.read_bytes()) or {}).get("names", [])
        pairs = dict(enumerate(names)) if isinstance(names, list) else {int(key): name for key, name in names.items()}
        return [str(pairs[number]) for number in range(len(pairs))]
    except ImportError:
        raise SourceError(
            f"{str(path)!r} needs PyYAML: pip install pyyaml, or write the names to classes.txt"
        ) from None
    except Exception:  # noqa: BLE001 - YAML raises many kinds
        raise SourceError(f"{str(path)!r}: `names` must be a list of class names, or numbers from 0 to names") from None
