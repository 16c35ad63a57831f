"""What a worker does with a unit of documents: read, tokenize, pack, and write fragment and rows.

With `--pack none` a sample is a document. Otherwise the unit is a window of its own: its documents become sequences,
which are numbered within the unit and lie in blocks, so that a sequence costs no framing and any one can be read alone.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from packer.checksum import noted
from packer.sample import Problem
from packer.sinks.fragment import FRAGMENTS
from packer.sources.base import Expecting
from packer.stored import public_name
from packer.tokens.pack import bestfit, concat
from packer.tokens.tokenizer import open_tokenizer
from packer.unit import UnitDone, unit_refs
from packer.whereabouts import Whereabouts
from packer_reader.errors import SampleError, UsageError
from packer_reader.format.array import array_header
from packer_reader.format.columns import COLUMN_MAGIC, frame_bytes, join_strings

if TYPE_CHECKING:
    from packer.sample import Ref
    from packer.sinks.fragment import Fragment
    from packer.sources.base import DocumentSource
    from packer.text import Text
    from packer.tokens.pack import Piece
    from packer.tokens.tokenizer import Tokenizer
    from packer.unit import SplitJob

    _Held = tuple[int, Ref, str]
    """Key, ref and text of a document."""

__all__ = ["BLOCK_BYTES", "KEYS", "convert_documents", "tokens_of"]

Tokens = npt.NDArray[Any]

KEYS = 1 << 24
"""Keys of a unit's sequences: the first is the unit's number times this."""
BLOCK_BYTES = 1 << 18
"""Bytes of tokens in a block."""
_TOGETHER = 1 << 18
"""Characters that are tokenized by one call: the library is faster with several documents."""


@dataclass
class _Unit:
    """A unit of documents on its way."""

    job: SplitJob
    number: int
    text: Text
    tokenizer: Tokenizer
    at: Whereabouts
    listed: list[Ref]
    """All documents of the unit."""
    refs: list[Ref] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    tokens: list[Tokens] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """With `keep_text`."""
    problems: list[Problem] = field(default_factory=list)
    first: str | None = None
    """The first problem, with its real name."""
    names: list[str] = field(default_factory=list)
    """Of the samples; a sequence has that of its first document."""
    sizes: list[int] = field(default_factory=list)
    """Bytes of all fields of a sample."""
    counts: list[int] = field(default_factory=list)
    """Tokens of a sample, without padding."""

    def read(self, crashed: frozenset[int], together: int) -> None:
        """Read and tokenize all documents, so many characters at a time; bad ones are recorded."""
        source = cast("DocumentSource", self.job.source)
        held: list[_Held] = []
        size = 0
        keys = self.job.plan.keys(self.number).tolist()
        for key, ref in zip(keys, self.listed, strict=True):
            self.at.note(key)
            if key in crashed:
                self._refuse(key, ref, SampleError("crashed", "converting it ended the worker process, twice"))
                continue
            try:
                held.append((key, ref, source.document(ref)))
            except SampleError as error:
                self._refuse(key, ref, error)
                continue
            size += len(held[-1][2])
            if size >= together:
                self._encode(held)
                held, size = [], 0
        self._encode(held)
        self.at.note(None)  # of what packs and writes the unit no document is the cause
        self.problems.sort(key=lambda one: one.key)

    def _refuse(self, key: int, ref: Ref, error: SampleError) -> None:
        name = public_name(ref.name, self.job.recipe.source_names)
        self.problems.append(Problem(name, error.failure, error.reason, key))
        self.first = self.first or f"{ref.name!r}: {error.reason}"

    def _encode(self, held: list[_Held]) -> None:
        """Tokenize documents; where the library fails on all together, one by one."""
        if not held:
            return
        self.at.note(held[0][0])
        try:
            found = [_framed(tokens, self.text) for tokens in self.tokenizer.encode([one for _, _, one in held])]
        except SampleError as error:
            if len(held) == 1:
                self._refuse(held[0][0], held[0][1], error)
            else:
                for one in held:
                    self._encode([one])
            return
        for (key, ref, document), tokens in zip(held, found, strict=True):
            if not len(tokens):
                self._refuse(key, ref, SampleError("empty", "the tokenizer makes nothing of it"))
                continue
            self.tokens.append(tokens)
            self.keys.append(key)
            self.refs.append(ref)
            if self.text.keep_text:
                self.texts.append(document)

    def _name(self, document: int) -> str:
        return public_name(self.refs[document].name, self.job.recipe.source_names)

    def write_documents(self, fragment: Fragment) -> None:
        """A sample for each document."""
        for place, (key, tokens) in enumerate(zip(self.keys, self.tokens, strict=True)):
            blobs = [array_header(tokens.dtype.str, tokens.shape) + tokens.tobytes()]
            if self.text.keep_text:
                blobs.append(self.texts[place].encode())
            fragment.add(key, blobs)
            self.names.append(self._name(place))
            self.sizes.append(sum(map(len, blobs)))
            self.counts.append(len(tokens))

    def packed(self) -> list[list[Piece]]:
        """The documents as sequences.

        Raises:
            UsageError: there are too many of them.
        """
        assert self.text.seq_len is not None
        lengths, seed = [len(tokens) for tokens in self.tokens], self.job.recipe.seed
        if self.text.pack == "concat":
            rows = concat(lengths, self.text.seq_len)
        else:
            rows = bestfit(lengths, self.text.seq_len, seed, self.number)
        if len(rows) > KEYS:
            raise UsageError(f"a unit of documents makes {len(rows)} sequences, over {KEYS}: give a larger --seq-len")
        return rows

    def write_blocks(self, fragment: Fragment, packed: list[list[Piece]]) -> int:
        """Sequences in blocks; how many blocks."""
        assert self.text.seq_len is not None
        row_bytes = self.text.seq_len * np.dtype(self.text.dtype).itemsize
        together = max(1, min(BLOCK_BYTES, self.job.recipe.shard_bytes // 4) // row_bytes)
        for first in range(0, len(packed), together):
            part = packed[first : first + together]
            rows = [self._sequence(pieces) for pieces in part]
            self.names += [self._name(pieces[0][0]) for pieces in part]
            self.counts += [int(bounds[-1]) for _, bounds in rows]
            self.sizes += [tokens.nbytes + bounds.nbytes + 8 for tokens, bounds in rows]
            keys = [self.number * KEYS + place for place in range(first, first + len(part))]
            tokens, bounds = np.stack([tokens for tokens, _ in rows]), [bounds for _, bounds in rows]
            fragment.add_block(keys, [tokens, bounds, np.array(self.counts[first:], "<i8")])
        return -(-len(packed) // together)

    def _sequence(self, pieces: list[Piece]) -> tuple[Tokens, Tokens]:
        """Tokens of a sequence, padded, and where its documents begin and end."""
        assert self.text.seq_len is not None
        tokens = np.full(self.text.seq_len, self.text.pad, np.dtype(self.text.dtype).newbyteorder("<"))
        place, ends = 0, [0]
        for document, start, stop in pieces:
            tokens[place : place + stop - start] = self.tokens[document][start:stop]
            place += stop - start
            ends.append(place)
        return tokens, np.array(ends, "<i4")

    def facts(self, packed: list[list[Piece]]) -> dict[str, int]:
        """What the unit adds to the store's statistics."""
        pieces = Counter(document for row in packed for document, _, _ in row)
        tokens = sum(map(len, self.tokens))
        return {
            "documents": len(self.tokens),
            "tokens": tokens,
            "sequences": len(self.names),
            "cut": sum(count > 1 for count in pieces.values()),
            "padding": len(packed) * (self.text.seq_len or 0) - tokens if packed else 0,
        }


def convert_documents(
    job: SplitJob, unit: int, crashed: frozenset[int] = frozenset(), *, careful: bool = False
) -> UnitDone:
    """Convert one unit of documents; bad ones are recorded, never raised.

    Args:
        job: recipe and source.
        unit: number of the unit.
        crashed: keys whose conversion has killed a process twice; they are skipped.
        careful: tokenize document by document, since one of them has killed a process.

    Raises:
        OSError: the staging folder cannot be written.
    """
    text, packed = job.recipe.text, list[list[Any]]()
    assert text is not None
    with ExitStack() as stack:
        at = stack.enter_context(Whereabouts(job.work, unit))
        job.data_path(unit).parent.mkdir(parents=True, exist_ok=True)
        fragment = stack.enter_context(FRAGMENTS[job.recipe.container](job.data_path(unit), job.suffixes))
        one = _Unit(job, unit, text, _opened(text), at, unit_refs(job, unit))
        if isinstance(job.source, Expecting):
            job.source.expect(one.listed)
        one.read(crashed, 1 if careful else _TOGETHER)
        if text.pack == "none":
            one.write_documents(fragment)
            records = len(one.names)
        else:
            packed = one.packed()
            records = one.write_blocks(fragment, packed)
    return _finish(one, fragment, one.facts(packed), records)


def _opened(text: Text) -> Tokenizer:
    return open_tokenizer(text.tokenizer, text.file, text.digest, allow_special=text.allow_special)


def tokens_of(job: SplitJob, ref: Ref) -> Tokens:
    """Tokens of one document, without writing anything.

    Raises:
        SampleError: it cannot be read.
    """
    text, source = job.recipe.text, cast("DocumentSource", job.source)
    assert text is not None
    return _framed(_opened(text).encode([source.document(ref)])[0], text)


def _framed(tokens: Tokens, text: Text) -> Tokens:
    """With the ids before and behind a document, in the stored dtype.

    Raises:
        SampleError: an id is over the vocabulary.
    """
    if len(tokens) and int(tokens.max()) >= text.vocabulary:
        raise SampleError("unsupported", f"the tokenizer gave id {int(tokens.max())}, its ids end at {text.vocabulary}")
    before = [] if text.bos is None else [text.bos]
    behind = [] if text.eos is None else [text.eos]
    done = np.empty(len(before) + len(tokens) + len(behind), np.dtype(text.dtype).newbyteorder("<"))
    done[: len(before)] = before
    done[len(before) : len(done) - len(behind)] = tokens
    done[len(done) - len(behind) :] = behind
    return done


def _finish(one: _Unit, fragment: Fragment, facts: dict[str, int], records: int) -> UnitDone:
    job, unit = one.job, one.number
    offsets, names = join_strings(one.names)
    # A column `n_valid` beside a packed store's shards would be the split "validation" to Hugging Face's `datasets`.
    counts = {"col.tokens": np.array(one.counts, "<u4")} if one.text.pack == "none" else {}
    meta = {"problems": [problem.to_json() for problem in one.problems], "tokens": facts}
    arrays: dict[str, npt.NDArray[Any]] = {
        "meta": np.frombuffer(json.dumps(meta).encode(), np.uint8),
        **fragment.arrays(),
        **counts,
        "col.bytes": np.array(one.sizes, "<u8"),
        "name.offsets": offsets,
        "name.bytes": names,
    }
    frame = frame_bytes(COLUMN_MAGIC, {}, arrays)
    job.rows_path(unit).write_bytes(frame)
    return UnitDone(
        unit=unit,
        written=len(one.tokens),
        skipped=len(one.problems),
        source_bytes=sum(ref.size for ref in one.listed),
        name_bytes=len(names),
        data=(fragment.bytes, fragment.checksum.intdigest()),
        rows=noted(frame),
        samples=len(one.names),
        records=records if job.recipe.container == "tar" else len(arrays["value.key"]),
        problem=one.first,
    )
