"""A store of documents read as sequences of one length: packed while reading, at any length, without tokenizing again.

The documents of a store, end to end in stored order, are one stream of tokens; sequence i is its tokens from i x L on.
Documents were shuffled when they were stored, and sequences are shuffled when they are read, so nothing else is needed:
each token comes exactly once per epoch, and any sequence is found by arithmetic.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer_reader.arguments import in_range, whole
from packer_reader.errors import DamageError, StoreError, UsageError
from packer_reader.format.array import ARRAY_HEADER
from packer_reader.format.fields import MAX_SEQUENCE, ROWS, sequence_fields
from packer_reader.ragged import Ragged
from packer_reader.stores.rows import memory_at, placed
from packer_reader.stores.spans import distinct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer_reader.fill import Encoded
    from packer_reader.format.fields import FieldSpec
    from packer_reader.stores.base import Ints, Store
    from packer_reader.tokens import TokenDtype

__all__ = ["SequenceStore"]

Array = npt.NDArray[Any]


class SequenceStore:
    """A store of documents that looks like one of sequences."""

    def __init__(self, store: Store, seq_len: int) -> None:
        """Take a store that was built with `--pack none`.

        Raises:
            UsageError: it holds no documents, or they are packed already.
        """
        text, self._tokens = store.manifest.recipe.get("text"), store.manifest.field("tokens")
        if not text or self._tokens is None or self._tokens.codec == ROWS:
            what = f"sequences of {text['seq_len']} tokens" if text else "no tokens"
            raise UsageError(f"seq_len is for stores of documents (--pack none), {store!r} has {what}: leave it out")
        self.documents, self.length = store, whole("seq_len", seq_len, 1, MAX_SEQUENCE)
        self.pad = int(text["pad"])
        self._place = store.manifest.fields.index(self._tokens)
        total = int(store.manifest.statistics["tokens"]["tokens"])
        self._total = total
        ends = store.columns.numbers("token_end")
        if not len(ends) or int(ends[-1]) != total:
            raise DamageError(f"{store!r} does not hold the {total} tokens that its manifest says: copy it again")
        identity = f"{store.manifest.content_digest} {self.length}"
        self.manifest = replace(
            store.manifest,
            samples=-(-total // self.length),
            content_digest=hashlib.sha256(identity.encode()).hexdigest(),
            columns={},
            fields=sequence_fields(self._tokens.dtype, self.length, self.length + 1),
        )
        self.path = store.path
        self.columns: Any = {}
        """None: what a sequence has is computed."""

    def __len__(self) -> int:
        return self.manifest.samples

    def __repr__(self) -> str:
        return f"<{len(self):,} sequences of {self.length} tokens of {self.documents!r}>"

    @property
    def container_sizes(self) -> Ints:
        """Sequences cross the borders of shards: one container."""
        return np.array([len(self)], np.int64)

    def number(self, number: int) -> int:
        """A sequence's number in range; see `Store.number`."""
        return in_range(number, len(self))

    def check_same(self) -> None:
        """See `Store.check_same`."""
        self.documents.check_same()

    def announce(self, numbers: Ints, fields: Sequence[int]) -> bool:  # noqa: ARG002 - the seam's signature
        """Let the system fetch the documents of some sequences; what is damaged is left to whoever reads it."""
        with suppress(StoreError, IndexError):
            return self.documents.announce(distinct(self._pieces(numbers)[0]), [self._place])
        return False

    def filler(self, field: FieldSpec, dtype: TokenDtype) -> Filler:
        """What fills a field of a batch."""
        return Filler(self, field, dtype)

    def bounds(self, numbers: Ints) -> Ragged:
        """Where documents begin in some sequences, and their valid tokens."""
        _, _, lengths, owners, _ = self._pieces(numbers)
        counts = np.bincount(owners, minlength=len(numbers)) + 1
        offsets = np.concatenate([[0], np.cumsum(counts)])
        steps = np.zeros(int(offsets[-1]), np.int64)
        inner = np.ones(len(steps), np.bool_)
        inner[offsets[:-1]] = False
        steps[inner] = lengths
        ends = np.cumsum(steps)
        ends -= np.repeat(ends[offsets[:-1]], counts)
        return Ragged.of(ends.astype(np.int32), offsets)

    def valid(self, numbers: Ints) -> Ints:
        """Tokens of some sequences, without padding."""
        return np.minimum(self.length, self._total - numbers * self.length)

    def gather(self, numbers: Ints, out: Array) -> None:
        """Tokens of some sequences into (n, length).

        Raises:
            StoreError: a shard cannot be read.
        """
        assert self._tokens is not None
        documents, begun, lengths, owners, whole = self._pieces(numbers)
        kind = np.dtype(self._tokens.dtype)
        columns = np.concatenate([[0], np.cumsum(lengths)])[:-1] - owners * self.length
        # Of each sequence but the last all tokens are valid, so that a piece begins where those before it end.
        columns += np.concatenate([[0], np.cumsum(self.length - self.valid(numbers))])[owners]
        for row in np.flatnonzero(self.valid(numbers) < self.length).tolist():
            out[row] = self.pad
        counts = self.documents.columns.numbers("tokens")[documents].astype(np.int64)
        addresses, sizes, held = placed(self.documents, documents, self._place)
        odd = (begun < 0) | (lengths < 0) | (whole != counts) | (counts * kind.itemsize + ARRAY_HEADER != sizes)
        if bool(odd.any()):
            raise self.documents.damaged(int(documents[odd][0]), "its columns do not fit its tokens")
        first = addresses + sizes + (begun - counts) * kind.itemsize
        rows = zip(first.tolist(), owners.tolist(), columns.tolist(), lengths.tolist(), strict=True)
        for address, row, column, length in rows:
            out[row, column : column + length] = memory_at(address, length, kind)
        del held

    def _pieces(self, numbers: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Parts of documents, sequence by sequence.

        Returns:
            Document, first token in it, tokens, place in `numbers`, and tokens of the whole document, int64 each.

        Raises:
            DamageError: the columns say what cannot be.
        """
        ends = self.documents.columns.numbers("token_end")
        low = numbers * self.length
        high = np.minimum(low + self.length, self._total)
        first = np.searchsorted(ends, low.astype(np.uint64), "right")
        last = np.searchsorted(ends, high.astype(np.uint64), "left")
        counts = last - first + 1
        if bool((counts < 1).any()):
            raise DamageError(f"the columns of {self.documents!r} are damaged: run `packer verify`, then copy it again")
        owners = np.repeat(np.arange(len(numbers)), counts)
        documents = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        stops = ends[documents].astype(np.int64)
        starts = np.where(documents > 0, ends[documents - 1].astype(np.int64), 0)
        begins, closes = np.maximum(starts, low[owners]), np.minimum(stops, high[owners])
        return documents, begins - starts, closes - begins, owners, stops - starts


class Filler:
    """A field of sequences; see `Pictures`."""

    def __init__(self, store: SequenceStore, field: FieldSpec, dtype: TokenDtype) -> None:
        """Take the sequences and one of their fields."""
        self._store, self._kind = store, field.kind
        self.shapes: list[tuple[int, ...] | None] = [None if field.kind == "bounds" else field.maximum]
        stored = field.kind == "tokens" and dtype == "stored"
        self.dtype: Any = np.dtype(field.dtype if stored else np.int64)

    def fill(self, encoded: Encoded, outs: list[Array | None], *_: object) -> list[Any]:
        """The values; see `Pictures.fill`."""
        out, numbers = outs[0], encoded.numbers
        if self._kind == "bounds":
            return [self._store.bounds(numbers)]
        assert out is not None
        if self._kind == "tokens":
            self._store.gather(numbers, out)
        else:
            out[...] = self._store.valid(numbers)
        return [None]
