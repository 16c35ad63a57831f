"""Lists of images: CSV, TSV, JSON lines or Parquet, one row a sample; also Hugging Face's `metadata.*` beside images.

Paths are relative to the list. Columns become fields by `--field NAME=KIND:COLUMN`, or by their names: `file_name`,
`path`, `image` is the image; `label`, `class`, `category` the label; `mask_file_name` a mask, `depth_file_name` a depth
map, any other `NAME_file_name` a further image; of the others strings are text, numbers are numbers, anything else is
JSON. A column has one type, decided over the whole list: `NA` and `007` are strings, and one of them makes strings of
all. Whole labels are kept as they are; labels of text become classes in sorted order; real ones are numbers. A row
without its images, label, mask or number is skipped and said; text that is missing is empty, JSON null.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.fields import PICTURES
from packer.sample import Problem, RawSample, Ref
from packer.sources.base import Listing
from packer.sources.columns import Chosen, choose
from packer.sources.files import read_ref
from packer.sources.lists import Column, encoded_columns, read_rows
from packer.sources.refs import Common, Places
from packer.sources.tree import suffix_of
from packer.sources.walk import EXTENSIONS
from packer_reader.errors import SampleError, SourceError
from packer_reader.format.columns import canonical_json

if TYPE_CHECKING:
    from packer.fields import Extra
    from packer.sources.lists import Row
    from packer.sources.refs import RefWriter

__all__ = ["Metadata"]

_Held = tuple[bytes, int, int, int, int, bytes]
"""Name, size, time, place among what is kept (or -1), label and note of a row."""
_CHUNK = 1 << 13
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


@dataclass(frozen=True)
class Metadata:
    """One list, or a list for each split."""

    root: str
    """The folder that names are relative to."""
    lists: tuple[tuple[str, str], ...]
    """Each list's path below the root, and its split; the split is empty where there are none."""
    fields: tuple[str, ...] = ()
    """As `--field` has them."""
    known: tuple[str, ...] = ()
    """Classes that keep their index."""
    beside: bool = False
    """Whether the list describes a folder of images (Hugging Face): paths may not lead out of it."""
    spool: str = ""
    """File of the images that the list itself holds, once it has been scanned."""
    type: str = "metadata"
    prefixes: tuple[bytes, ...] = (b"",)

    def scan(self, refs: RefWriter) -> Listing:
        """List the rows in their order; see `Source.scan`. Reads the lists twice: types are a whole column's."""
        columns = dict[str, Column]()
        for path, _ in self.lists:
            self._look(path, columns)
        names = " and ".join(repr(path) for path, _ in self.lists)
        chosen = choose(columns, self.fields, self.known, names)
        splits = tuple(dict.fromkeys(split for _, split in self.lists if split))
        taken = _Taken(self, refs, chosen)
        for path, split in self.lists:
            taken.take(path, split, splits.index(split) if split else -1)
        if not refs.count:
            first = f" (the first: {taken.problems[0].name!r}, {taken.problems[0].reason})" if taken.problems else ""
            raise SourceError(f"no row of {names} can be used{first}: check the list")
        return Listing(
            type=self.type,
            reason=f"the list {names}: {chosen.words}",
            classes=chosen.classes,
            labelled=chosen.label is not None,
            splits=splits,
            found=refs.count + len(taken.problems),
            bytes=refs.bytes,
            digest=refs.digest(canonical_json([p.to_json() for p in taken.problems] + [chosen.words])),
            suffixes=taken.suffixes,
            ignored=Counter(),
            extras=tuple(extra for extra, _ in chosen.extras),
            problems=taken.problems,
            notices=[
                *(f"column {column!r} holds bytes and was left out" for column in chosen.left),
                *(self._unlisted(taken.paths) if self.beside else []),
            ],
        )

    def read(self, ref: Ref) -> RawSample:
        """Read the files of one row; see `Source.read`."""
        note = json.loads(ref.extra) if ref.extra else {}
        values = dict(note.get("values", {}))
        for name, (path, size, mtime_ns, offset) in note.get("files", {}).items():
            values[name] = self._bytes(Ref(path, size, mtime_ns, -1, offset=offset))
        return RawSample(ref, self._bytes(ref), ref.label, values)

    def spooled_at(self, path: Path) -> Metadata:
        """The same for workers, where images were kept while scanning."""
        return replace(self, spool=str(path)) if path.exists() else self

    def _bytes(self, ref: Ref) -> bytes:
        if ref.offset >= 0:
            return _kept(self.spool, ref)
        return read_ref("" if ref.name.startswith("/") else self.root, ref)

    def _look(self, path: str, columns: dict[str, Column]) -> None:
        named, text, rows = read_rows(Path(self.root) / path, light=True)
        files = encoded_columns(Path(self.root) / path)
        labels = [asked.partition(":")[2] for asked in self.fields if asked.startswith("label=")]
        for name in named:
            columns.setdefault(name, Column(text, name in files, classes=name in labels))
        for row in rows:
            for name, value in row.cells.items():
                if name not in columns:
                    columns[name] = Column(text, classes=name in labels)
                columns[name].add(name, value)

    def _unlisted(self, listed: set[str]) -> list[str]:
        """A sentence about images in the folder that no row names."""
        count, first = 0, ""
        for folder, _, files in os.walk(self.root):
            for name in sorted(files):
                place = os.path.relpath(f"{folder}/{name}", self.root)
                if Path(name).suffix.lower() in EXTENSIONS and place not in listed:
                    count, first = count + 1, first or place
        return [f"{count} images are in no row of the list and were left out (the first: {first!r})"] if count else []


@dataclass
class _Taken:
    """Rows on their way to refs."""

    source: Metadata
    refs: RefWriter
    chosen: Chosen
    problems: list[Problem] = field(default_factory=list)
    suffixes: Counter[str] = field(default_factory=Counter)
    paths: set[str] = field(default_factory=set)
    """Listed files, where somebody wants to know."""

    def take(self, path: str, split: str, number: int) -> None:
        """All rows of one list."""
        _, text, rows = read_rows(Path(self.source.root) / path)
        above = os.path.dirname(path)  # noqa: PTH120 - names may be no valid text
        held: list[_Held] = []
        for row in rows:
            name = row.place
            if row.problem:
                self.problems.append(Problem(name, "bad-row", f"{name}: {row.problem}", split=split or None))
                continue
            given = row.cells.get(self.chosen.image)
            if self.chosen.encoded and len(self.source.lists) > 1:
                name = f"{path} {row.place}"
            elif not self.chosen.encoded:
                name = given if isinstance(given, str) else "" if text else row.place
            try:
                held.append(self._ref(row, above, name))
            except (SampleError, OverflowError) as error:
                error = (
                    error if isinstance(error, SampleError) else SampleError("no-value", f"{row.place} is too large")
                )
                self.problems.append(Problem(name, error.failure, error.reason, split=split or None))
            if len(held) == _CHUNK:
                self._add(held, number)
        self._add(held, number)

    def _add(self, held: list[_Held], number: int) -> None:
        if held:
            names, sizes, mtimes, offsets, labels, extras = map(list, zip(*held, strict=True))
            places = Places(sizes, mtimes, offsets, labels=labels, extras=extras)
            self.refs.add(names, places, Common(split=number))
        held.clear()

    def _ref(self, row: Row, above: str, name: str) -> _Held:
        chosen, offset = self.chosen, -1
        image = _encoded(row, chosen.image) if chosen.encoded else b""
        if chosen.encoded:
            if image is None:
                raise SampleError("no-path", f"{row.place} has no {chosen.image!r}")
            if not image:
                raise SampleError("empty", f"{row.place}: the image has no bytes")
            size, mtime_ns = len(image), 0
        else:
            name, size, mtime_ns = self._file(row, chosen.image, "no-path", above)
        label = chosen.number_of(row)
        files, values, kept = dict[str, Any](), dict[str, Any](), dict[str, bytes]()
        for extra, column in chosen.extras:
            if extra.kind in PICTURES:
                data = _encoded(row, column)
                missing = "no-image" if extra.kind == "image" else "no-mask"
                if data is None:
                    files[extra.name] = [*self._file(row, column, missing, above), -1]
                else:
                    kept[extra.name] = data
            else:
                values[extra.name] = _value(extra, row, column)
        if image:
            offset = self.refs.keep(image)
        files |= {extra: ["", len(data), 0, self.refs.keep(data)] for extra, data in kept.items()}
        note = {key: value for key, value in (("files", files), ("values", values)) if value}
        note_bytes = json.dumps(note, ensure_ascii=True).encode() if note else b""
        self.suffixes[_suffix(image) if image else suffix_of(os.fsencode(name)).decode("ascii", "replace")] += 1
        return os.fsencode(name), size, mtime_ns, offset, label, note_bytes

    def _file(self, row: Row, column: str, missing: str, above: str) -> tuple[str, int, int]:
        """Path (below the root, or absolute), size and time of a file that a row names."""
        given = row.cells.get(column)
        if not isinstance(given, str) or not given:
            raise SampleError(missing, f"{row.place} has no {column!r}")
        path = self._safe(given, above)
        try:
            found = os.stat(path if path.startswith("/") else f"{self.source.root}/{path}")  # noqa: PTH116
        except (OSError, ValueError):
            raise SampleError("vanished", f"{row.place}: the file of {column!r} is not there") from None
        if not stat.S_ISREG(found.st_mode):
            raise SampleError("unreadable", f"{row.place}: {column!r} is not a file")
        if self.source.beside:
            self.paths.add(os.path.normpath(path))
        return path, found.st_size, found.st_mtime_ns

    def _safe(self, given: str, above: str) -> str:
        if "\0" in given or _SCHEME.match(given):
            raise SampleError("unsupported", "it is no path on this machine: list local files")
        if self.source.beside and (given.startswith("/") or ".." in given.split("/")):
            raise SampleError("unsupported", "it leads out of the folder: paths are relative to the list")
        return given if given.startswith("/") or not above else f"{above}/{given}"


def _encoded(row: Row, column: str) -> bytes | None:
    """A file that a cell holds itself, as bytes or as Hugging Face's pair of `bytes` and `path`."""
    cell = row.cells.get(column)
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    return data if isinstance(data, bytes) else None


def _kept(spool: str, ref: Ref) -> bytes:
    with open(spool, "rb") as file:  # noqa: PTH123 - once per image
        data = os.pread(file.fileno(), ref.size, ref.offset)
    if len(data) != ref.size:
        raise SampleError("vanished", "what was kept of it while scanning is gone")
    return data


def _suffix(image: bytes) -> str:
    """What an image would be called as a file: JPEG and WebP stay what they are, all else is lossless."""
    return ".jpg" if image[:2] == b"\xff\xd8" else ".webp" if image[8:12] == b"WEBP" else ".png"


def _value(extra: Extra, row: Row, column: str) -> Any:
    value = row.cells.get(column)
    if extra.kind == "text":
        return "" if value is None else value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, bytes | bytearray):
        raise SampleError("unsupported", f"{row.place}: {column!r} holds bytes, which are no text")
    if extra.kind == "number":
        if value is None:
            raise SampleError("no-value", f"{row.place} has no {column!r}")
        number = int(value) if extra.dtype == "int64" else float(value)
        if not math.isfinite(number):
            raise SampleError("no-value", f"{row.place}: {column!r} is {value!r}")
        return number
    try:
        return _plain(value)
    except RecursionError:
        raise SampleError("unsupported", f"{row.place}: {column!r} is nested too deep") from None


def _plain(value: Any) -> Any:
    """What JSON can hold, of what Parquet gives."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
