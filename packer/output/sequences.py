"""Statistics and fields of a store of tokens, from the units' own counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from packer_reader.format.fields import FieldSpec, sequence_fields

if TYPE_CHECKING:
    from packer.rows import UnitRows
    from packer.text import Text

__all__ = ["TokenStatistics"]


class TokenStatistics:
    """Sums over units: documents, tokens, what was cut and padded."""

    def __init__(self, text: Text) -> None:
        """Begin with nothing."""
        self._text = text
        self._sums: Counter[str] = Counter(dict.fromkeys(("documents", "tokens", "sequences", "cut", "padding"), 0))
        self._longest = 0
        self._most_bounds = 0
        self._end = 0

    def derived(self, rows: UnitRows) -> UnitRows:
        """The unit's rows with the column `token_end`: where each document ends in the tokens of the whole store."""
        if self._text.pack != "none":
            return rows
        ends = self._end + np.cumsum(rows.columns["tokens"].astype(np.int64))
        self._end = int(ends[-1]) if len(ends) else self._end
        return replace(rows, columns={**rows.columns, "token_end": ends.astype("<u8")})

    def add(self, rows: UnitRows) -> None:
        """Take the next unit."""
        self._sums.update(rows.meta["tokens"])
        if self._text.pack == "none":
            self._longest = max(self._longest, int(rows.columns["tokens"].max(initial=0)))
        elif rows.index.size.shape[1]:
            self._most_bounds = max(self._most_bounds, int(rows.index.size[1].max()) // 4)

    def to_json(self) -> dict[str, Any]:
        """The manifest's `statistics`."""
        return {"tokens": dict(self._sums)}

    def fields(self) -> tuple[FieldSpec, ...]:
        """What every sample of the store has."""
        text = self._text
        if text.pack == "none":
            kept = (FieldSpec("text", "text", "txt", "txt", ""),) if text.keep_text else ()
            tokens = FieldSpec("tokens", "tokens", "tokens.npy", "npy", text.dtype, (None,), (self._longest,))
            return (tokens, *kept)
        assert text.seq_len is not None
        return sequence_fields(text.dtype, text.seq_len, self._most_bounds)
