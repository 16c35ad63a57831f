"""Documents: text files, JSON lines, CSV and Parquet, plain or compressed, in folders of any depth.

A .txt file is a document, or its lines or paragraphs are (`--doc-sep`). Elsewhere a row is one, in the key or column
that `--text-field` names. What can be read at a place of one's choice is listed as places in its file, so that the
order is free and nothing is held in memory; what cannot (gzip, Zstandard, CSV, Parquet) is unpacked once, into the
staging folder. Whether a line is JSON, and text Unicode, is seen when it is read: a bad one is skipped by its number.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packer.sample import Problem, Ref
from packer.sources.base import Listing
from packer.sources.document import keys_of, line_of_text, text_of
from packer.sources.lines import spans_of
from packer.sources.lists import read_rows
from packer.sources.refs import KEPT, Common, Places, prefixes_of
from packer.sources.textfiles import LINES, TABLES, TEXTS, TextFile, path_of, text_files, text_suffix
from packer.sources.unpack import PACKED, beginning, chunks_of
from packer_reader.errors import MissingError, SampleError, SourceError
from packer_reader.format.columns import canonical_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from packer.sources.refs import RefWriter
    from packer.text import Text

__all__ = ["Documents"]

_NUMBER = re.compile(r":[0-9]+$")
"""Behind a file's name, the number of a document in it."""
_PEEK = 1 << 16
"""Bytes up to which a first line is looked at, for what else rows hold."""


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
        """See `Source.prefixes`."""
        return prefixes_of(self.roots)

    def scan(self, refs: RefWriter) -> Listing:
        """List the documents of all files, in sorted order; see `Source.scan`."""
        found = text_files(self.roots)
        files, problems, beside = found.files, found.problems, set[str]()
        splits = tuple(sorted({file.split for file in files if file.split}))
        for file in files:
            number = splits.index(file.split) if file.split else -1
            before = refs.count + len(problems)
            try:
                beside |= self._list(file, refs, number, problems)
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
            ignored=found.ignored,
            problems=problems,
            notices=[*found.notices, *_left_out(beside, self.text)],
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
        suffix = text_suffix(_NUMBER.sub("", ref.name))
        return line_of_text(data, self.text) if suffix in LINES else text_of(data, self.text)

    def _whole(self, ref: Ref) -> bool:
        return ref.offset < 0

    def _bytes(self, ref: Ref) -> bytes:
        try:
            file = os.open(self._file(ref), os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = _read(file, ref)
            finally:
                os.close(file)
        except FileNotFoundError:
            raise SampleError("vanished", "the file was there when the source was listed and is gone") from None
        except OSError as error:
            raise SampleError("unreadable", f"the system refused to read it ({error.strerror})") from None
        if not data.strip():
            raise SampleError("empty", "the document is empty or blank")
        return data

    def _file(self, ref: Ref) -> bytes:
        """Path of the file that a document lies in."""
        if ref.crc == KEPT:
            return os.fsencode(self.unpacked)
        name = ref.name.encode("utf-8", "surrogateescape")[ref.prefix :]
        path = name if self._whole(ref) else name.rpartition(b":")[0]
        return path_of(self.roots[ref.source], os.fsdecode(path))

    def stored(self, refs: Sequence[Ref]) -> Iterator[bytes | None]:
        """The bytes of documents as they lie in their files, each file opened once where they come in its order.

        None for what `document` has to refuse.

        Raises:
            OSError: what was unpacked cannot be read.
        """
        opened, file = b"", -1
        try:
            for ref in refs:
                found, path = None, self._file(ref)
                try:
                    if path != opened:
                        if file >= 0:
                            os.close(file)
                        opened, file = b"", -1
                        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                        opened = path
                    if ref.size <= self.text.max_document:
                        found = _read(file, ref)
                except (OSError, SampleError):
                    if ref.crc == KEPT:
                        raise  # it is a file of ours, and its places will be others
                yield found
        finally:
            if file >= 0:
                os.close(file)

    def expect(self, refs: Sequence[Ref]) -> None:
        """Let the system fetch documents that lie side by side; see `Expecting`."""
        kept = [ref for ref in refs if ref.crc == KEPT]
        first = min((ref.offset for ref in kept), default=0)
        size = sum(ref.size for ref in kept)
        if not kept or max(ref.offset + ref.size for ref in kept) - first > 2 * size:
            return
        file = os.open(self.unpacked, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(file, first, size, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(file)

    def _list(self, file: TextFile, refs: RefWriter, split: int, problems: list[Problem]) -> set[str]:
        """List the documents of one file; returns what its rows hold beside the text, as far as the first one says."""
        suffix, common = text_suffix(file.name), Common(split=split, source=file.source)
        path = path_of(self.roots[file.source], file.name)
        if suffix in TABLES:
            return self._list_rows(file, Path(os.fsdecode(path)), refs, common, problems)
        packed = file.name.lower().endswith(PACKED)
        separator = "line" if suffix in LINES else self.text.separator
        if separator == "file" and not packed:
            if file.size:
                refs.add([os.fsencode(file.name)], Places([file.size], [file.mtime_ns]), common)
            return set()
        if separator == "file":
            whole = beginning(chunks_of(path, file.name), self.text.max_document)
            self._keep(refs, [(f"{file.name}:1", whole)], common)
            return set()
        base, head = 0, b""

        def chunks() -> Iterator[bytes]:
            nonlocal base, head
            for number, chunk in enumerate(chunks_of(path, file.name)):
                place = refs.keep(chunk) if packed else 0
                base = base if number else place
                head = head + chunk[: _PEEK - len(head)]
                yield chunk

        prefix = os.fsencode(file.name) + b":"
        for spans in spans_of(chunks(), separator):
            count = len(spans.starts)
            places = Places(
                spans.sizes.tolist(),
                [file.mtime_ns] * count,
                (spans.starts + base).tolist(),
                crcs=[KEPT if packed else -1] * count,
            )
            refs.add([prefix + b"%d" % line for line in spans.lines.tolist()], places, common)
        return keys_of(head) if suffix in LINES else set()

    def _list_rows(
        self, file: TextFile, path: Path, refs: RefWriter, common: Common, problems: list[Problem]
    ) -> set[str]:
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
        return set(named)

    def _keep(self, refs: RefWriter, held: list[tuple[str, bytes]], common: Common) -> None:
        places = Places(
            [len(data) for _, data in held],
            [0] * len(held),
            [refs.keep(data) for _, data in held],
            crcs=[KEPT] * len(held),
        )
        refs.add([os.fsencode(name) for name, _ in held], places, common)
        held.clear()


def _read(file: int, ref: Ref) -> bytes:
    """A document out of its open file.

    Raises:
        SampleError: the file has changed.
        OSError: it cannot be read.
    """
    same = ref.crc == KEPT or os.fstat(file).st_mtime_ns == ref.mtime_ns
    data = os.pread(file, ref.size, max(0, ref.offset)) if same else b""
    if len(data) != ref.size:
        raise SampleError("vanished", "the file has changed since the source was listed")
    return data


def _left_out(beside: set[str], text: Text) -> list[str]:
    """What of the rows is not stored, and what is not put behind documents, in words."""
    others = sorted(beside - {text.field})
    notices = [f"only {text.field!r} of each row is stored, without {', '.join(others)}"] if others else []
    if text.eos is None:
        notices.append("nothing is put behind each document: --eos names a token or an id, where one is wanted")
    return notices


def _refuse(error: Exception, file: TextFile) -> None:
    """What a file that cannot be read as a whole means.

    Raises:
        SourceError: it is damaged or unreadable: documents behind the fault would be lost.
    """
    if isinstance(error, SourceError | MissingError):
        raise error
    what = (error.strerror if isinstance(error, OSError) else None) or str(error)
    raise SourceError(f"{file.name!r} cannot be read to its end ({what}): copy it again, or leave it out") from None
