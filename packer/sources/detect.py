"""Which source paths are."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING

from braceexpand import braceexpand

from packer.sources import PYTHON
from packer.sources.annotated import Annotated, annotated_folders
from packer.sources.coco import Coco, coco_files
from packer.sources.grouped import Grouped, looks_grouped
from packer.sources.imagefolder import SPLIT_NAMES, ImageFolder
from packer.sources.lists import LISTS
from packer.sources.metadata import Metadata
from packer.sources.pairs import Pairs, pair_folders
from packer.sources.store import Stores, open_stores
from packer.sources.text import Documents
from packer.sources.textfiles import text_suffix
from packer.sources.textual import asks_for_text
from packer.sources.tree import ARCHIVES, COMPRESSED, COMPRESSED_REASON, is_folder, is_junk, suffix_of
from packer.sources.walk import root_of
from packer.text import Text
from packer_reader.errors import SampleError, SourceError, UsageError
from packer_reader.format.names import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer.sources.base import Source

__all__ = ["TYPES", "detect"]

TYPES = ("imagefolder", "coco", "metadata", "pairs", "sidecars", "store", "text", "voc", "webdataset", "yolo")
_SINGLE = {
    "coco": "one annotation file, or a folder with annotations/instances_*.json",
    "metadata": "one list, or a folder with metadata.csv",
    "pairs": "a folder with images/ and masks/",
    "voc": "a folder with JPEGImages/ and Annotations/",
    "yolo": "a folder with images/ and labels/ of .txt files",
}
"""What sources of one path are."""
_LOOKED_AT = 8
"""Sources, or archives of a folder, that say what all are."""
_METADATA = tuple(f"metadata{suffix}" for suffix in (".csv", ".jsonl", ".parquet"))
"""What Hugging Face calls a list beside images."""


def detect(
    paths: Sequence[str],
    forced: str | None = None,
    known: tuple[str, ...] = (),
    fields: tuple[str, ...] = (),
    text: Text | None = None,
) -> Source:
    """The source at one or several paths.

    Args:
        paths: what the user named.
        forced: a type out of `TYPES`, instead of a guess; or `python:MODULE:ATTRIBUTE`, without paths.
        known: classes that keep their index.
        fields: `NAME=KIND:COLUMN` of a list.
        text: what documents are made into, where anything was said about it: then the source is text.

    Raises:
        SourceError: nothing is there, or it is nothing that can be converted.
        UsageError: there is no such type.
    """
    if forced is not None and forced.startswith(PYTHON):
        return _python(forced, paths, known)
    if forced is not None and forced not in TYPES:
        raise UsageError(f"--from is {forced!r}, it must be one of {', '.join(TYPES)} or python:MODULE:ATTRIBUTE")
    if not paths:
        raise UsageError("no source is given: name the folder that holds the images, then the output")
    paths = _places([path for pattern in paths for path in _expanded(pattern)])
    stores = [path for path in paths if _is_store(path)]
    if asks_for_text(paths, text, forced, fields, stores):
        found: Source = Documents(tuple(paths), text or Text())
    else:
        found = _found(paths, forced, known, fields)
    if fields and not isinstance(found, Metadata):
        raise UsageError("--field names columns of a list, and the source is none: leave it out")
    if known and isinstance(found, Stores | Pairs | Grouped | Documents):
        raise UsageError(
            f"--classes gives classes an index, and a source of type {found.type} has none of its own: leave it out"
        )
    return found


def _found(paths: list[str], forced: str | None, known: tuple[str, ...], fields: tuple[str, ...]) -> Source:
    stores = [_is_store(path) for path in paths]
    if forced == "store" or any(stores):
        if all(stores) and forced in {None, "store"}:
            return open_stores(paths)
        raise SourceError(
            f"{paths[stores.index(all(stores))]!r} cannot be built so: packer's stores and raw images are built apart"
        )
    found = _single(paths[0], forced, known, fields) if len(paths) == 1 else None
    if found is None and forced in _SINGLE:
        raise SourceError(f"--from {forced} takes {_SINGLE[forced]}, not {', '.join(map(repr, paths))}")
    return found or _several(paths, forced, known)


def _several(paths: list[str], forced: str | None, known: tuple[str, ...]) -> Source:
    """Folders or archives: of samples of several files, or of images."""
    if len(paths) > 1 and forced is None:
        _check_single(paths, known)
    for path in paths:
        if text_suffix(path) and Path(path).is_file():
            raise SourceError(f"source {path!r} is text, and no images lie in it: --from text takes its documents")
    grouped = [_is_grouped(path) for path in paths[:_LOOKED_AT]] if forced is None else []
    if any(grouped) and not all(grouped) and not all(path.endswith(".tar") for path in paths):
        odd = paths[grouped.index(False)]
        raise SourceError(f"{odd!r} has no samples of several files, unlike other sources: build it on its own")
    if forced in {"webdataset", "sidecars"} or any(grouped):
        loose = forced is None and Path(paths[0]).is_dir() and not any(Path(paths[0]).glob("*.tar"))
        return Grouped(tuple(paths), "sidecars" if forced == "sidecars" or loose else "webdataset")
    return ImageFolder(tuple(paths), known)


def _check_single(paths: list[str], known: tuple[str, ...]) -> None:
    """Refuse several sources of which one is more than a folder of images: its masks or labels would be lost."""
    for path in paths:
        found = _single(path, None, known, ())
        if found is not None:
            raise SourceError(
                f"{path!r} is a source of type {found.type}, which is built on its own: name one, or give --from "
                "imagefolder to take images alone"
            )


def _places(paths: list[str]) -> list[str]:
    """The paths, each of which holds something, and none of which lies in another."""
    paths = [path.rstrip("/") or path for path in paths]
    for path in paths:
        _check_place(path)
    seen: dict[Path, str] = {}
    places = [Path(path).resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if place in seen:
            raise UsageError(f"sources {seen[place]!r} and {path!r} overlap: name each image once")
        seen[place] = path
    for path, place in zip(paths, places, strict=True):
        for parent in place.parents:
            if parent in seen:
                raise UsageError(f"sources {seen[parent]!r} and {path!r} overlap: name each image once")
    return paths


def _expanded(pattern: str) -> list[str]:
    """Paths of a pattern as shells and webdataset have them: `{000..123}`, `*`; of anything else the path itself."""
    if Path(pattern).exists() or not set(pattern) & set("{*?["):
        return [pattern]
    try:
        return [path for one in braceexpand(pattern) for path in _globbed(one)]
    except ValueError:
        raise UsageError(f"source {pattern!r} opens a brace that it does not close: {{000..123}}") from None


def _globbed(pattern: str) -> list[str]:
    found = list[str]()
    if set(pattern) & set("*?["):
        found = sorted(glob.glob(pattern))  # noqa: PTH207 - patterns may be absolute
    return found or [pattern]


def _is_store(path: str) -> bool:
    """Whether this is a store, or a folder of splits. A folder may hold a million files: none of them is looked at."""
    place = Path(path)
    if not place.is_dir():
        return False
    if (place / MANIFEST).is_file():
        return True
    with os.scandir(place) as entries:
        return any(is_folder(entry) and (place / entry.name / MANIFEST).is_file() for entry in entries)


def _is_grouped(path: str) -> bool:
    """Whether files of one stem are one sample here: a tar of WebDataset, a folder of such, or texts beside images."""
    place = Path(path)
    if place.is_file():
        return place.suffix.lower() == ".tar" and _is_grouped_tar(path)
    names = []
    with os.scandir(os.fsencode(path)) as entries:
        for entry in entries:
            if is_junk(entry.name):
                continue
            if is_folder(entry):
                return False
            names.append(entry.name)
    archives = sorted(name for name in names if suffix_of(name) == b".tar")
    if archives and len(archives) == len(names):
        return any(_is_grouped_tar(f"{path}/{os.fsdecode(name)}") for name in archives[:_LOOKED_AT])
    return not archives and looks_grouped(names)


def _is_grouped_tar(path: str) -> bool:
    try:
        level = root_of(path).level(lambda suffix: suffix != b".tar")
        inside = [folder.level(lambda _: True) for _, folder in level.folders]
    except (SampleError, SourceError, OSError):
        return False
    labelled = any(name.endswith(b".cls") for one in (level, *inside) for name in one.files.names)
    return labelled or (not inside and looks_grouped(level.files.names))


def _single(path: str, forced: str | None, known: tuple[str, ...], fields: tuple[str, ...]) -> Source | None:
    """A source of one path that is more than a folder of images; None when it is that.

    Raises:
        SourceError: it may be one or the other.
    """
    place = Path(path)
    if place.is_file() and place.suffix.lower() in LISTS:
        return Metadata(str(place.parent), ((place.name, ""),), fields, known)
    annotations = coco_files(path) if forced in {None, "coco"} else ()
    if annotations:
        return Coco(str(place.parent if place.is_file() else place), annotations, known)
    if not place.is_dir():
        return None
    found: dict[str, Source] = {}
    if lists := _lists(place):
        found["metadata"] = Metadata(path, lists, fields, known, beside=Path(lists[0][0]).name in _METADATA)
    boxes, pair = annotated_folders(path), pair_folders(path)
    if boxes is not None:
        found[boxes[0]] = Annotated(path, *boxes, known)
    if pair is not None and (boxes is None or pair[1] != boxes[2]):
        found["pairs"] = Pairs(path, *pair)
    fitting = {name: source for name, source in found.items() if forced in {None, name}}
    if len(fitting) > 1:
        raise SourceError(f"{path!r} may be {' or '.join(fitting)}: say which, --from {'|'.join(fitting)}")
    return next(iter(fitting.values()), None)


def _lists(place: Path) -> tuple[tuple[str, str], ...]:
    """The lists of a folder: one of its own, or one in each folder of a split."""
    own = [name for name in _METADATA if (place / name).is_file()]
    if len(own) > 1:
        raise SourceError(f"{str(place)!r} has {' and '.join(own)}: keep one, or name it as the source")
    if own:
        return ((own[0], ""),)
    folders, tables, others = list[str](), list[str](), False
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name.endswith(".md"):
                continue
            if is_folder(entry):
                folders.append(entry.name)
            elif entry.name.endswith(".parquet"):
                tables.append(entry.name)
            else:
                others = True
    if tables and not others and not folders:
        splits = [SPLIT_NAMES.get(name.split("-")[0].lower(), "") for name in sorted(tables)]
        return tuple((name, split if all(splits) else "") for name, split in zip(sorted(tables), splits, strict=True))
    found = [
        (f"{folder}/{name}", SPLIT_NAMES.get(folder.lower(), ""))
        for folder in sorted(folders)
        for name in _METADATA
        if SPLIT_NAMES.get(folder.lower()) and (place / folder / name).is_file()
    ]
    splits = [split for _, split in found]
    return tuple(found) if found and all(splits) and len(set(splits)) == len(splits) == len(folders) else ()


def _python(forced: str, paths: Sequence[str], known: tuple[str, ...]) -> Source:
    if paths:
        raise UsageError(f"--from {forced} names the data set, so there can be no path {paths[0]!r} besides the output")
    from packer.sources.dataset import load_dataset  # noqa: PLC0415 - only data sets of Python need it

    return load_dataset(forced.removeprefix(PYTHON), known)


def _check_place(path: str) -> None:
    """Refuse a path that holds nothing to convert."""
    place = Path(path)
    if not place.exists():
        raise SourceError(f"source {path!r} does not exist: check the path")
    if not place.is_dir() and not place.is_file():
        raise SourceError(f"source {path!r} is neither a file nor a folder: check the path")
    if not place.is_dir() and place.name.lower().endswith(tuple(end.decode() for end in COMPRESSED)):
        raise SourceError(f"source {path!r}: {COMPRESSED_REASON}")
    known = (*LISTS, ".json", *(suffix.decode() for suffix in ARCHIVES))
    if not place.is_dir() and place.suffix.lower() not in known and not text_suffix(place.name):
        raise SourceError(
            f"source {path!r} is a file: give the folder that holds the images, a .tar or .zip archive of it, a "
            f"list ({' '.join(LISTS)}), annotations (.json), or text (.txt, .jsonl, also .gz and .zst)"
        )
