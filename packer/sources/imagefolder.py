"""Folders of images, in torchvision's conventions.

Classes are the sorted first-level folders; everything below one belongs to it. A folder without sub-folders has no
classes. When *all* first-level folders are split names, each is a split with the classes below it, and one class map
covers their union.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from packer.sample import Problem, RawSample, Ref
from packer.sources.base import Listing
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
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
_MAX_FILE = 1 << 31
"""Bytes of an image file; it is read whole."""
_JUNK = frozenset({"thumbs.db", "desktop.ini", "__macosx", "lost+found", "$recycle.bin"})


@dataclass
class _Walk:
    """The state of one scan."""

    refs: RefWriter
    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    suffixes: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Below:
    """What the files of one folder have in common."""

    label: int
    split: int
    split_name: str | None
    refuse: str | None = None
    """Why images here are no samples."""


@dataclass(frozen=True)
class ImageFolder:
    """A folder of images, with or without class folders and split folders."""

    root: str
    type: str = "imagefolder"

    def scan(self, refs: RefWriter) -> Listing:
        """List the images in sorted order; see `Source.scan`."""
        top = self._entries(self.root, "")
        folders = [e.name for e in top if _is_dir(e)]
        walk = _Walk(refs)
        split_names = [SPLIT_NAMES.get(name.lower()) for name in folders]
        if folders and all(split_names):
            classes, splits = self._scan_splits(walk, folders)
            reason = f"all its folders are splits: {', '.join(folders)}"
        else:
            classes, splits = self._scan_classes(walk, folders), ()
            reason = f"{len(folders)} class folders" if folders else "images in one folder, without classes"
        if not refs.count and not walk.problems:
            raise SourceError(self._nothing(walk))
        return Listing(
            type=self.type,
            reason=reason,
            classes=classes,
            splits=splits,
            found=refs.count + len(walk.problems),
            bytes=refs.bytes,
            digest=refs.digest(canonical_json([p.to_json() for p in walk.problems])),
            suffixes=walk.suffixes,
            ignored=walk.ignored,
            problems=walk.problems,
            notices=walk.notices,
        )

    def read(self, ref: Ref) -> RawSample:
        """Read the file of one image; see `Source.read`."""
        path = f"{self.root}/{ref.name}"
        if ref.size > _MAX_FILE:
            raise SampleError("too-large", f"the file has {ref.size} bytes, images have at most {_MAX_FILE}")
        try:
            with Path(path).open("rb") as file:
                data = file.read(ref.size + 1)  # a byte more shows that it grew; a file that grows for ever ends here
        except FileNotFoundError:
            raise SampleError("vanished", "the file was there when the source was listed and is gone") from None
        except OSError as error:
            raise SampleError("unreadable", f"the system refused to read it ({error.strerror})") from None
        if not data:
            raise SampleError("empty", "the file has no bytes")
        if len(data) != ref.size:
            raise SampleError("vanished", "the file has another size than when the source was listed")
        return RawSample(ref, data)

    def _nothing(self, walk: _Walk) -> str:
        seen = ", ".join(f"{count} {suffix or 'without extension'}" for suffix, count in walk.ignored.most_common(5))
        return (
            f"no images in {self.root!r} (found: {seen or 'nothing'}): give the folder that holds the class folders; "
            f"images are {' '.join(sorted(EXTENSIONS))}"
        )

    def _entries(self, folder: str, name: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as found:
                entries = [e for e in found if not _is_junk(e.name)]
        except OSError as error:
            what = f"{self.root!r}" if not name else f"{name!r} in {self.root!r}"
            raise SourceError(f"cannot list {what}: {error.strerror}; check the path and its permissions") from None
        return sorted(entries, key=lambda e: os.fsencode(e.name))

    def _scan_splits(self, walk: _Walk, folders: list[str]) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
        names = [SPLIT_NAMES[folder.lower()] for folder in folders]
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            same = [folder for folder, name in zip(folders, names, strict=True) if name == twice[0]]
            raise SourceError(
                f"folders {same!r} in {self.root!r} are the same split {twice[0]!r}: rename or merge them"
            )
        union = {e.name for folder in folders for e in self._entries(f"{self.root}/{folder}", folder) if _is_dir(e)}
        classes = tuple(sorted(union, key=os.fsencode))
        for number, (folder, name) in enumerate(zip(folders, names, strict=True)):
            self._scan_level(walk, folder, classes, _Below(-1, number, name))
        first = names[0]
        self._loose(walk, "", _Below(-1, 0, first, "the file is in no split folder"))
        return classes or None, tuple(names)

    def _scan_classes(self, walk: _Walk, folders: list[str]) -> tuple[str, ...] | None:
        self._scan_level(walk, "", tuple(folders), _Below(-1, -1, None))
        return tuple(folders) or None

    def _scan_level(self, walk: _Walk, prefix: str, classes: tuple[str, ...], below: _Below) -> None:
        """The folder that holds class folders, or images when there are no classes."""
        for label, name in enumerate(classes):
            path = f"{prefix}/{name}" if prefix else name
            if not Path(self.root, path).is_dir():
                continue
            before = walk.refs.count + len(walk.problems)
            self._walk(walk, path, _Below(label, below.split, below.split_name))
            if walk.refs.count + len(walk.problems) == before:
                walk.notices.append(f"class folder {path!r} holds no image; it keeps its index {label}")
        refuse = "the file is in no class folder" if classes else None
        self._loose(walk, prefix, _Below(-1, below.split, below.split_name, refuse))

    def _loose(self, walk: _Walk, prefix: str, below: _Below) -> None:
        folder = f"{self.root}/{prefix}" if prefix else self.root
        for entry in self._entries(folder, prefix):
            if not _is_dir(entry):
                self._file(walk, entry, f"{prefix}/{entry.name}" if prefix else entry.name, below)

    def _walk(self, walk: _Walk, name: str, below: _Below) -> None:
        """Everything below a class folder: its files, then its folders.

        A stack instead of recursion, since folders may be nested a thousand deep.
        """
        stack = [(name, self._above())]
        while stack:
            path, ancestors = stack.pop()
            here = _identity(f"{self.root}/{path}")
            if here in ancestors:
                walk.notices.append(f"{path!r} is a link to a folder above it and was not followed")
                continue
            folders = []
            for entry in self._entries(f"{self.root}/{path}", path):
                if _is_dir(entry):
                    folders.append((f"{path}/{entry.name}", ancestors | {here}))
                else:
                    self._file(walk, entry, f"{path}/{entry.name}", below)
            stack += reversed(folders)

    def _above(self) -> frozenset[tuple[int, int]]:
        """The source's folder and all that it lies in."""
        root = Path(self.root).resolve()
        return frozenset(_identity(str(folder)) for folder in (root, *root.parents))

    def _file(self, walk: _Walk, entry: os.DirEntry[str], name: str, below: _Below) -> None:
        suffix = PurePath(entry.name).suffix.lower()
        if suffix not in EXTENSIONS:
            walk.ignored[suffix] += 1
            return

        def refuse(failure: str, reason: str) -> None:
            walk.problems.append(Problem(name, failure, reason, split=below.split_name))

        try:
            found = entry.stat()
        except OSError:
            refuse("unreadable", "the link leads nowhere")
            return
        if not stat.S_ISREG(found.st_mode):
            refuse("unreadable", "it is not a regular file")
        elif below.refuse:
            refuse("no-class", below.refuse)
        else:
            walk.suffixes[suffix] += 1
            walk.refs.add(Ref(name, found.st_size, found.st_mtime_ns, below.label), below.split)


def _is_junk(name: str) -> bool:
    return name.startswith(".") or name.lower() in _JUNK


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _identity(path: str) -> tuple[int, int]:
    found = Path(path).stat()
    return found.st_dev, found.st_ino
