"""Tokens of text in a batch: sequences in place, documents of any length, and what their boundaries say."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from packer_reader.decode import decode_field
from packer_reader.errors import UsageError
from packer_reader.pixels import check
from packer_reader.ragged import Ragged
from packer_reader.stores.rows import Rows, gather_ragged

if TYPE_CHECKING:
    from packer_reader.fill import Encoded
    from packer_reader.format.fields import FieldSpec
    from packer_reader.stores.base import Store

__all__ = ["Bounds", "Lengths", "Sequences", "TokenDtype", "document_ids", "position_ids"]

TokenDtype = Literal["int64", "stored"]


def document_ids(cu_seqlens: Ragged, length: int) -> torch.Tensor:
    """Which document of its sequence each token belongs to, int64 (n, length): 0, 1, ...; -1 where there is padding.

    Args:
        cu_seqlens: of a batch: per sequence 0, the end of its first document, ..., its valid tokens.
        length: of the sequences.

    Example:
        >>> document_ids(Ragged(torch.tensor([0, 2, 3]), torch.tensor([0, 3])), 4).tolist()
        [[0, 0, 1, -1]]
    """
    ids, ends = _starts(cu_seqlens, length)
    ids = torch.cumsum(ids, 1) - 1
    return torch.where(torch.arange(length, device=ids.device) < ends[:, None], ids, -1)


def position_ids(cu_seqlens: Ragged, length: int) -> torch.Tensor:
    """The place of each token in its document, int64 (n, length); 0 where there is padding.

    Resetting positions alone does not keep documents apart: give attention the boundaries as well, such as
    `cu_seqlens` to kernels of variable lengths, or a mask from `document_ids`.

    Example:
        >>> position_ids(Ragged(torch.tensor([0, 2, 3]), torch.tensor([0, 3])), 4).tolist()
        [[0, 1, 0, 0]]
    """
    starts, ends = _starts(cu_seqlens, length)
    place = torch.arange(length, device=starts.device).expand_as(starts)
    begun = torch.cummax(torch.where(starts.bool(), place, 0), 1).values
    return torch.where(place < ends[:, None], place - begun, 0)


def _starts(cu_seqlens: Ragged, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """1 where a document begins, int64 (n, length), and the valid tokens of each sequence."""
    count, values = len(cu_seqlens), cu_seqlens.values.to(torch.int64)
    longest = int(values.max()) if len(values) else 0
    if longest > length:
        raise UsageError(f"a sequence has {longest} tokens, and length is {length}: give the length of the sequences")
    last = cu_seqlens.offsets[1:] - 1
    device = values.device
    row = torch.repeat_interleave(torch.arange(count, device=device), cu_seqlens.offsets.diff())
    begins = torch.ones(len(values), dtype=torch.bool, device=device)
    begins[last] = False
    found = torch.zeros(count, length, dtype=torch.int64, device=device)
    found[row[begins], values[begins]] = 1
    return found, values[last]


class Sequences:
    """Tokens of sequences of one length, or a number of each: rows of blocks, gathered into the batch."""

    def __init__(self, store: Store, field: FieldSpec, place: int, dtype: TokenDtype) -> None:
        """Take the field, its place in the manifest, and what the batch holds tokens as."""
        self._store, self._field, self._place = store, field, place
        wide = field.kind == "tokens" and dtype == "int64"
        self.dtype: Any = np.dtype(np.int64 if wide else field.dtype)
        self.shapes: list[tuple[int, ...] | None] = [field.maximum]

    def fill(self, encoded: Encoded, outs: list[npt.NDArray[Any] | None], *_: object) -> list[Any]:
        """The rows; see `Pictures.fill`."""
        out = outs[0]
        assert out is not None
        self.rows(encoded.numbers).copy(0, len(out), out)
        return [None]

    def rows(self, numbers: npt.NDArray[np.int64]) -> Rows:
        """The rows of some samples, int64 (n,), before they are copied."""
        return Rows(self._store, numbers, self._place, self._field.dtype, math.prod(self._field.maximum))


class Bounds:
    """Rows of blocks of any length, such as where documents begin."""

    dtype = None
    shapes: list[tuple[int, ...] | None] = [None]  # noqa: RUF012 - of all

    def __init__(self, store: Store, field: FieldSpec, place: int) -> None:
        """Take the field and its place in the manifest."""
        self._store, self._field, self._place = store, field, place

    def fill(self, encoded: Encoded, *_: object) -> list[Any]:
        """The rows as `Ragged`; see `Pictures.fill`."""
        return [Ragged.of(*gather_ragged(self._store, encoded.numbers, self._place, self._field.dtype))]


class Lengths:
    """Tokens of documents of any length, each an array of its own."""

    dtype = None
    shapes: list[tuple[int, ...] | None] = [None]  # noqa: RUF012 - of all

    def __init__(self, store: Store, field: FieldSpec, dtype: TokenDtype) -> None:
        """Take the field, and what the batch holds it as."""
        self._store, self._field = store, field
        self._dtype = np.dtype(np.int64 if dtype == "int64" else field.dtype)

    def fill(self, encoded: Encoded, *_: object) -> list[Any]:
        """The documents as `Ragged`; see `Pictures.fill`."""
        arrays: list[npt.NDArray[Any]] = []
        for number, view, crc in zip(encoded.numbers.tolist(), encoded.views, encoded.crcs, strict=True):
            check(self._store, number, view, crc)
            arrays.append(decode_field(self._field, view))
        offsets = np.cumsum([0, *map(len, arrays)])
        values = np.empty(int(offsets[-1]), self._dtype)
        for start, array in zip(offsets.tolist(), arrays, strict=False):
            values[start : start + len(array)] = array
        return [Ragged.of(values, offsets)]
