"""Files of one stem are one sample: WebDataset's tars, and folders with captions, labels or masks beside images.

Grouped as webdataset groups: the key is the path up to the first dot of the file's name, all behind it names the field,
in lower case. Members of a sample may lie scattered in their archive. The image is the field whose name is an image's
extension alone (two of them are two samples); `cls` is the label, `txt`, `caption` and `NAME.txt` are text, `json` and
`NAME.json` JSON, `mask.png`, `seg.png` and the like masks, `depth.png` a depth map, and `NAME.png` that every sample
has a further image. Everything else is left out, and said; pickled values are never read, since reading runs code.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packer.fields import PICTURES, Extra
from packer.sample import Problem, RawSample, Ref
from packer.sources.base import Listing
from packer.sources.files import read_ref
from packer.sources.refs import Common, Places, prefixes_of
from packer.sources.suffixes import IMAGE_SUFFIXES, field_of, fields_of
from packer.sources.tree import suffix_of
from packer.sources.walk import root_of
from packer_reader.errors import SampleError, SourceError
from packer_reader.format.columns import canonical_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from packer.sources.refs import RefWriter
    from packer.sources.tree import Level, Place

__all__ = ["Grouped", "looks_grouped"]

_TEXTS = frozenset({b".txt", b".json", b".cls"})
_CHUNK = 1 << 13


@dataclass(frozen=True, slots=True)
class _File:
    """Where a field of a sample lies."""

    name: bytes
    """Relative to the source."""
    size: int
    mtime_ns: int
    offset: int
    packed: int
    crc: int

    def ref(self, outer: int) -> list[Any]:
        """As a sample's note keeps it."""
        return [os.fsdecode(self.name), self.size, self.mtime_ns, outer, self.offset, self.packed, self.crc]


@dataclass
class _Sample:
    """A group: field suffix to file."""

    source: int
    outer: int
    files: dict[str, _File] = field(default_factory=dict)
    refused: tuple[str, str] | None = None


@dataclass
class _Found:
    """What a first pass says of all samples."""

    samples: int = 0
    pictures: Counter[str] = field(default_factory=Counter)
    fields: Counter[str] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)
    """Fields of groups without an image."""


@dataclass(frozen=True)
class Grouped:
    """Tar archives, or folders, whose files of one stem are one sample."""

    roots: tuple[str, ...]
    type: str = "webdataset"

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """See `Source.prefixes`."""
        return prefixes_of(self.roots)

    def scan(self, refs: RefWriter) -> Listing:
        """List the samples archive by archive, folder by folder; see `Source.scan`. Lists everything twice."""
        found = _Found()
        for one in self._samples([]):
            pictures = [suffix for suffix in one.files if suffix in IMAGE_SUFFIXES]
            found.samples += len(pictures)
            found.pictures.update(pictures)
            if pictures:
                found.fields.update({suffix: len(pictures) for suffix in one.files if suffix not in IMAGE_SUFFIXES})
            else:
                found.alone.update(list(one.files))
        if not found.samples:
            fields = ", ".join(found.alone) or "nothing"
            raise SourceError(
                f"no sample of {', '.join(map(repr, self.roots))} has an image (fields found: {fields}): images are "
                f"{' '.join(sorted(IMAGE_SUFFIXES))}"
            )
        extras, labelled, notices = fields_of(found.fields, found.samples)
        problems = list[Problem]()
        held: list[tuple[_Sample, str, bytes]] = []
        for one in self._samples(problems):
            if not any(suffix in IMAGE_SUFFIXES for suffix in one.files):
                first = min(one.files.values(), key=lambda file: file.name)
                problems.append(Problem(os.fsdecode(first.name), "no-image", "no image has this name"))
            for suffix in [suffix for suffix in one.files if suffix in IMAGE_SUFFIXES]:
                try:
                    held.append((one, suffix, _note(one, extras, labelled=labelled)))
                except SampleError as error:
                    problems.append(Problem(os.fsdecode(one.files[suffix].name), error.failure, error.reason))
            if len(held) >= _CHUNK:
                _add(refs, held)
        _add(refs, held)
        return Listing(
            type=self.type,
            reason="files of one name are one sample: " + ", ".join(sorted([*found.pictures, *found.fields])),
            classes=None,
            labelled=labelled,
            splits=(),
            found=refs.count + len(problems),
            bytes=refs.bytes,
            digest=refs.digest(canonical_json([problem.to_json() for problem in problems])),
            suffixes=Counter({f".{suffix}": count for suffix, count in found.pictures.items()}),
            ignored=Counter(),
            extras=tuple(extra for extra, _ in extras),
            problems=problems,
            notices=notices,
        )

    def read(self, ref: Ref) -> RawSample:
        """Read all files of a sample; see `Source.read`."""
        note = json.loads(ref.extra) if ref.extra else {}
        root, label = self.roots[ref.source], -1
        values: dict[str, Any] = dict.fromkeys(note.pop("", []))  # what this sample lacks
        for name, (kind, *place) in note.items():
            path, size, mtime_ns, outer, offset, packed, crc = place
            found = Ref(path, size, mtime_ns, -1, outer=outer, offset=offset, packed=packed, crc=crc)
            if kind in PICTURES:
                values[name] = read_ref(root, found)
                continue
            text = _decoded(name, read_ref(root, found) if size else b"")
            if kind == "label":
                label = _label(text)
            else:
                values[name] = _parsed(name, text) if kind == "json" else text
        return RawSample(ref, read_ref(root, ref), label, values)

    def _samples(self, problems: list[Problem]) -> Iterator[_Sample]:
        """All groups in order; what cannot be read is noted."""
        for number, root in enumerate(self.roots):
            stack: list[tuple[bytes, Place, int]] = [(b"", root_of(root), 0)]
            while stack:
                name, place, outer = stack.pop()
                if place.archive and name:
                    outer = len(name)
                try:
                    level = place.level(lambda suffix: suffix != b".tar")
                except SampleError as error:
                    problems.append(Problem(os.fsdecode(name) or root, error.failure, error.reason))
                    continue
                for below, path in reversed(level.archives):
                    stack.append((_joined(name, below), root_of(os.fsdecode(path)), outer))
                yield from _groups(level, name, _Sample(number, outer), problems)
                stack += [(_joined(name, below), folder, outer) for below, folder in reversed(level.folders)]


def _joined(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


def _split(name: bytes) -> tuple[bytes, str]:
    """Key and field of a file's name, at its first dot."""
    key, _, suffix = name.partition(b".")
    return key, os.fsdecode(suffix).lower()


def _groups(level: Level, folder: bytes, like: _Sample, problems: list[Problem]) -> Iterator[_Sample]:
    """The samples of one folder, by key."""
    groups: dict[bytes, _Sample] = {}
    files = level.files
    nothing = [-1] * len(files.names)
    places = (files.offsets or nothing, files.packed or [0] * len(files.names), files.crcs or nothing)
    for name, size, mtime_ns, offset, packed, crc in zip(files.names, files.sizes, files.mtimes, *places, strict=True):
        key, suffix = _split(name)
        group = groups.setdefault(key, _Sample(like.source, like.outer))
        if suffix in group.files:
            shown = os.fsdecode(_joined(folder, name))
            problems.append(Problem(shown, "duplicate", "another file has this name but for upper and lower case"))
            continue
        group.files[suffix] = _File(_joined(folder, name), size, mtime_ns, offset, packed, crc)
    for name, failure, reason in level.refused:
        above, _, last = name.rpartition(b"/")
        key = _split(last)[0]
        group = groups.setdefault(above + b"/" + key if above else key, _Sample(like.source, like.outer))
        if group.refused is None:
            group.refused = failure, reason
            problems.append(Problem(os.fsdecode(_joined(folder, name)), failure, reason))
    return (group for _, group in sorted(groups.items()) if group.refused is None)


def _note(one: _Sample, extras: list[tuple[Extra, str]], *, labelled: bool) -> bytes:
    """Where the other fields of a sample lie.

    Raises:
        SampleError: it lacks one that cannot be empty.
    """
    note, missing = dict[str, Any](), list[str]()
    if labelled:
        if "cls" not in one.files:
            raise SampleError("no-label", "the sample has no cls")
        note["label"] = ["label", *one.files["cls"].ref(one.outer)]
    for extra, suffix in extras:
        if suffix in one.files:
            note[extra.name] = [extra.kind, *one.files[suffix].ref(one.outer)]
        elif extra.kind in PICTURES:
            raise SampleError("no-image" if extra.kind == "image" else "no-mask", f"the sample has no {suffix}")
        else:
            missing.append(extra.name)
    if missing:
        note[""] = missing
    return json.dumps(note).encode() if note else b""


def _add(refs: RefWriter, held: list[tuple[_Sample, str, bytes]]) -> None:
    """Samples to refs, those of one archive together."""
    start = 0
    while start < len(held):
        source, outer = held[start][0].source, held[start][0].outer
        stop = start
        while stop < len(held) and (held[stop][0].source, held[stop][0].outer) == (source, outer):
            stop += 1
        files = [one.files[suffix] for one, suffix, _ in held[start:stop]]
        places = Places(
            [file.size for file in files],
            [file.mtime_ns for file in files],
            [file.offset for file in files],
            [file.packed for file in files],
            [file.crc for file in files],
            extras=[note for _, _, note in held[start:stop]],
        )
        refs.add([file.name for file in files], places, Common(source=source, outer=outer))
        start = stop
    held.clear()


def _decoded(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeError:
        raise SampleError("unsupported", f"the text of field {name!r} is not UTF-8") from None


def _label(text: str) -> int:
    try:
        label = int(text)
    except ValueError:
        raise SampleError("unsupported", f"the label is {text[:40]!r}, labels are whole numbers") from None
    if not -(1 << 31) <= label < 1 << 31:
        raise SampleError("unsupported", f"the label is {label}, labels have 32 bits")
    return label


def _parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise SampleError("corrupt", f"field {name!r} is not JSON") from None


def looks_grouped(names: Sequence[bytes]) -> bool:
    """Whether files of one folder share their stems: some image has text, JSON, a label or a mask beside it."""
    images, further = set[bytes](), set[bytes]()
    beside = {_split(name)[0] for name in names if suffix_of(name) in _TEXTS}
    for name in names:
        stem, suffix = _split(name)
        if suffix in IMAGE_SUFFIXES:
            images.add(stem)
        elif os.fsdecode(suffix_of(name))[1:] in IMAGE_SUFFIXES:
            extra = field_of(suffix)
            if extra is None:
                return False  # dots in names that are no fields
            (further if extra.kind == "image" else beside).add(stem)
    return further <= images and not images.isdisjoint(beside)
