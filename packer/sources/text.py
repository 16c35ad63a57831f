"""Documents: text files, JSON lines, CSV and Parquet, plain or compressed, in folders of any depth.

A .txt file is a document, or its lines or paragraphs are (`--doc-sep`). Elsewhere a row is one, in the key or column
that `--text-field` names. What can be read at a place of one's choice is listed as places in its file, so that the
order is free and nothing is held in memory; what cannot (gzip, Zstandard, CSV, Parquet) is unpacked once, into the
staging folder. Whether a line is JSON, and text Unicode, is seen when it is read: a bad one is skipped by its number.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.sample import Problem, Ref
from packer.sources.base import Listing
from packer.sources.imagefolder import SPLIT_NAMES
from packer.sources.lines import spans_of
from packer.sources.lists import read_rows
from packer.sources.refs import Common, Places
from packer.sources.tree import Folder, suffix_of
from packer.sources.unpack import PACKED, beginning, chunks_of
from packer_reader.errors import MissingError, SampleError, SourceError
from packer_reader.format.columns import canonical_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from packer.sources.refs import RefWriter
    from packer.text import Text

__all__ = ["TEXTS", "Documents", "text_suffix"]

TEXTS = (".txt", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
"""Extensions of documents, behind which .gz or .zst may stand for all but Parquet and CSV."""
_LINES = (".jsonl", ".ndjson")
_TABLES = (".csv", ".tsv", ".parquet")
_UNPACKED = -2
"""In place of a CRC: the document lies in the staging folder."""


def text_suffix(name: str) -> str:
    """The extension of documents that a file's name has, without a compression behind it; empty without one."""
    stem, last = os.path.splitext(name.lower())  # noqa: PTH122 - names may be no valid text
    inner = os.path.splitext(stem)[1] if last in PACKED else last  # noqa: PTH122
    return inner if inner in TEXTS and not (last in PACKED and inner in _TABLES) else ""


@dataclass(frozen=True)
class _Found:
    """A file of documents."""

    source: int
    name: str
    """Relative to its root."""
    size: int
    mtime_ns: int
    split: str = ""


@dataclass(frozen=True)
class Documents:
    """Files and folders of text."""

    roots: tuple[str, ...]
    """As the user named them."""
    text: Text
    unpacked: str = ""
    """File of what had to be unpacked, once it has been."""
    type: str = "text"

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """What tells names of one source from those of another."""
        names = [os.path.basename(root) for root in self.roots]  # noqa: PTH119 - names may be no valid text
        if len(set(names)) < len(names):
            names = list(self.roots)
        return tuple(os.fsencode(f"{name}/") for name in names)

    def scan(self, refs: RefWriter) -> Listing:
        """List the documents of all files, in sorted order; see `Source.scan`."""
        problems, ignored, notices = list[Problem](), Counter[str](), list[str]()
        files = _with_splits(list(self._files(problems, ignored, notices)))
        splits = tuple(sorted({file.split for file in files if file.split}))
        for file in files:
            number = splits.index(file.split) if file.split else -1
            before = refs.count + len(problems)
            try:
                self._list(file, refs, number, problems)
            except (OSError, EOFError, zlib.error, SourceError, MissingError) as error:
                _refuse(error, file)
            if refs.count + len(problems) == before:
                problems.append(Problem(file.name, "empty", "there is no document in it", split=file.split or None))
        if not refs.count:
            first = f" (the first problem: {problems[0].name!r}, {problems[0].reason})" if problems else ""
            raise SourceError(f"there is no document in {', '.join(map(repr, self.roots))}{first}: {' '.join(TEXTS)}")
        return Listing(
            type=self.type,
            reason=f"{len(files)} files of {', '.join(sorted({text_suffix(file.name) for file in files}))}",
            classes=None,
            labelled=False,
            splits=splits,
            found=refs.count + len(problems),
            bytes=refs.bytes,
            digest=refs.digest(canonical_json([problem.to_json() for problem in problems])),
            suffixes=Counter(),
            ignored=ignored,
            problems=problems,
            notices=notices,
        )

    def spooled_at(self, path: Path) -> Documents:
        """The same for workers, where documents were unpacked while scanning."""
        return replace(self, unpacked=str(path)) if path.exists() else self

    def document(self, ref: Ref) -> str:
        """One document.

        Raises:
            SampleError: vanished, unreadable, empty, no text, or too large.
        """
        if ref.size > self.text.max_document:
            raise SampleError(
                "too-large",
                f"it has {ref.size} bytes, the limit is {self.text.max_document} (--max-document; a .txt file holds "
                "several documents with --doc-sep line or blank)",
            )
        data = self._bytes(ref)
        suffix = text_suffix(ref.name if self._whole(ref) else ref.name.rpartition(":")[0])
        if suffix in _LINES:
            return _checked(_field(data, self.text), self.text)
        try:
            text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", self.text.errors)
        except UnicodeError:
            raise SampleError("unsupported", "it is not UTF-8 (--encoding-errors replace takes it)") from None
        return _checked(text, self.text)

    def read(self, ref: Ref) -> Any:
        """Documents are no pictures: see `document`."""
        raise NotImplementedError

    def _whole(self, ref: Ref) -> bool:
        return ref.offset < 0

    def _bytes(self, ref: Ref) -> bytes:
        name = ref.name.encode("utf-8", "surrogateescape")[ref.prefix :]
        path = name if self._whole(ref) else name.rpartition(b":")[0]
        root = self.roots[ref.source]
        place = os.fsencode(self.unpacked) if ref.crc == _UNPACKED else _path(root, os.fsdecode(path))
        try:
            file = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if ref.crc != _UNPACKED and os.fstat(file).st_mtime_ns != ref.mtime_ns:
                    raise SampleError("vanished", "the file has changed since the source was listed")
                data = os.pread(file, ref.size, max(0, ref.offset))
            finally:
                os.close(file)
        except FileNotFoundError:
            raise SampleError("vanished", "the file was there when the source was listed and is gone") from None
        except OSError as error:
            raise SampleError("unreadable", f"the system refused to read it ({error.strerror})") from None
        if len(data) != ref.size:
            raise SampleError("vanished", "the file has changed since the source was listed")
        if not data.strip():
            raise SampleError("empty", "the document is empty or blank")
        return data

    def _files(self, problems: list[Problem], ignored: Counter[str], notices: list[str]) -> Iterator[_Found]:
        """All files of all roots, sorted."""
        for number, root in enumerate(self.roots):
            if not Path(root).is_dir():
                if not Path(root).is_file():
                    raise SourceError(f"source {root!r} is neither a file nor a folder: check the path")
                found = Path(root).stat()
                yield _Found(number, os.path.basename(root), found.st_size, found.st_mtime_ns)  # noqa: PTH119
                continue
            stack = [(b"", Folder(os.fsencode(root)))]
            while stack:
                above, folder = stack.pop()
                level = folder.level(_wanted)
                notices += [f"{os.fsdecode(above)!r} {notice}" for notice in level.notices]
                refused = [*level.refused, *((n, "unsupported", "unpack the archive first") for n, _ in level.archives)]
                for name, failure, reason in refused:
                    problems.append(Problem(os.fsdecode(above + name), failure, reason))
                for suffix, count in level.ignored.items():
                    ignored[os.fsdecode(suffix)] += count
                rows = zip(level.files.names, level.files.sizes, level.files.mtimes, strict=True)
                for name, size, mtime_ns in rows:
                    path = os.fsdecode(above + name)
                    if text_suffix(path):
                        yield _Found(number, path, size, mtime_ns)
                    else:
                        ignored[os.fsdecode(suffix_of(name))] += 1
                below = [(above + name + b"/", place) for name, place in level.folders if isinstance(place, Folder)]
                stack += reversed(below)

    def _list(self, file: _Found, refs: RefWriter, split: int, problems: list[Problem]) -> None:
        """The documents of one file."""
        suffix, common = text_suffix(file.name), Common(split=split, source=file.source)
        path = _path(self.roots[file.source], file.name)
        if suffix in _TABLES:
            self._list_rows(file, Path(os.fsdecode(path)), refs, common, problems)
            return
        packed = file.name.lower().endswith(PACKED)
        separator = "line" if suffix in _LINES else self.text.separator
        if separator == "file" and not packed:
            if file.size:
                refs.add([os.fsencode(file.name)], Places([file.size], [file.mtime_ns]), common)
            return
        if separator == "file":
            self._keep(
                refs, [(f"{file.name}:1", beginning(chunks_of(path, file.name), self.text.max_document))], common
            )
            return
        base = 0

        def chunks() -> Iterator[bytes]:
            nonlocal base
            for number, chunk in enumerate(chunks_of(path, file.name)):
                place = refs.keep(chunk) if packed else 0
                base = base if number else place
                yield chunk

        prefix = os.fsencode(file.name) + b":"
        for spans in spans_of(chunks(), separator):
            count = len(spans.starts)
            places = Places(
                spans.sizes.tolist(),
                [file.mtime_ns] * count,
                (spans.starts + base).tolist(),
                crcs=[_UNPACKED if packed else -1] * count,
            )
            refs.add([prefix + b"%d" % line for line in spans.lines.tolist()], places, common)

    def _list_rows(self, file: _Found, path: Path, refs: RefWriter, common: Common, problems: list[Problem]) -> None:
        """The rows of a table; their text is kept, since none can be read at a place of one's choice."""
        named, _, rows = read_rows(path, only=self.text.field)
        if named and self.text.field not in named:
            raise SourceError(
                f"{file.name!r} has no column {self.text.field!r}, it has {', '.join(named)}: name it by --text-field"
            )
        held = list[tuple[str, bytes]]()
        for row in rows:
            name = f"{file.name}:{row.place.rpartition(' ')[2]}"
            value = row.cells.get(self.text.field)
            reason = row.problem or (
                "" if isinstance(value, str) else f"{row.place} has no text in {self.text.field!r}"
            )
            if reason:
                failure = "bad-row" if row.problem else "no-text"
                problems.append(Problem(name, failure, reason, split=file.split or None))
                continue
            assert isinstance(value, str)
            held.append((name, value.encode("utf-8", "surrogateescape")))
            if len(held) == 1 << 13:
                self._keep(refs, held, common)
        self._keep(refs, held, common)

    def _keep(self, refs: RefWriter, held: list[tuple[str, bytes]], common: Common) -> None:
        places = Places(
            [len(data) for _, data in held],
            [0] * len(held),
            [refs.keep(data) for _, data in held],
            crcs=[_UNPACKED] * len(held),
        )
        refs.add([os.fsencode(name) for name, _ in held], places, common)
        held.clear()


def _wanted(suffix: bytes) -> bool:
    return os.fsdecode(suffix) in (*TEXTS, *PACKED)


def _path(root: str, name: str) -> bytes:
    """Of a file of a source, which may be that file itself."""
    return os.fsencode(f"{root}/{name}") if Path(root).is_dir() else os.fsencode(root)


def _with_splits(files: Sequence[_Found]) -> list[_Found]:
    """The files with their splits, where first folders or names say one for each: `train/x.txt`, `val.jsonl`."""
    tops = [re.split(r"[/._-]", file.name.lower(), maxsplit=1)[0] for file in files]
    if not files or not all(top in SPLIT_NAMES for top in tops) or len({SPLIT_NAMES[top] for top in tops}) < 2:
        return list(files)
    return [replace(file, split=SPLIT_NAMES[top]) for file, top in zip(files, tops, strict=True)]


def _refuse(error: Exception, file: _Found) -> None:
    """What a file that cannot be read as a whole means.

    Raises:
        SourceError: it is damaged or unreadable: documents behind the fault would be lost.
    """
    if isinstance(error, SourceError | MissingError):
        raise error
    what = (error.strerror if isinstance(error, OSError) else None) or str(error)
    raise SourceError(f"{file.name!r} cannot be read to its end ({what}): copy it again, or leave it out") from None


def _field(data: bytes, text: Text) -> str:
    """The text of a line of JSON."""
    try:
        line = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", text.errors)
    except UnicodeError:
        raise SampleError("unsupported", "the line is not UTF-8 (--encoding-errors replace takes it)") from None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise SampleError("corrupt", "the line is not JSON") from None
    if not isinstance(found, dict):
        raise SampleError("bad-row", "the line is no JSON object")
    value = found.get(text.field)
    if not isinstance(value, str):
        what = "null" if text.field in found and value is None else "no text"
        raise SampleError("no-text", f"{text.field!r} is {what} (--text-field)")
    return value


def _checked(found: str, text: Text) -> str:
    if not found or found.isspace():
        raise SampleError("empty", "the document is empty or blank")
    try:
        found.encode()
    except UnicodeError:  # a half of a surrogate pair, which JSON can spell
        if text.errors == "strict":
            raise SampleError(
                "unsupported", "it holds half a surrogate pair (--encoding-errors replace takes it)"
            ) from None
        return found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return found
