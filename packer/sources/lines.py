"""Where documents begin and end in a stream of bytes: at line ends or at blank lines. Memory is bounded.

Lines end at the byte 10 and nowhere else: a carriage return, a form feed or U+2028 is text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from packer.text import Separator

__all__ = ["Spans", "spans_of"]

Ints = npt.NDArray[np.int64]

_SHORT = 64
"""Bytes that mostly tell whether a line is blank."""
_SPACE = np.array([bytes([value]).isspace() for value in range(256)])


@dataclass(frozen=True)
class Spans:
    """Some documents of a stream."""

    starts: Ints
    sizes: Ints
    """Bytes, without the line end."""
    lines: Ints
    """Number of the first line of each, from 1."""


def spans_of(chunks: Iterable[bytes], separator: Separator) -> Iterator[Spans]:
    """The documents of a stream, those of a chunk together; blank ones are none.

    Args:
        chunks: the stream, in pieces of any size.
        separator: `line`, or `blank` for blank lines.
    """
    lines = _lines(chunks)
    return _paragraphs(lines) if separator == "blank" else (_chosen(found, ~blank) for found, blank in lines)


def _chosen(spans: Spans, which: npt.NDArray[np.bool_]) -> Spans:
    return Spans(spans.starts[which], spans.sizes[which], spans.lines[which])


def _lines(chunks: Iterable[bytes]) -> Iterator[tuple[Spans, npt.NDArray[np.bool_]]]:
    """All lines, and which of them are blank."""
    place, begun, number, blank = 0, 0, 1, True
    for chunk in chunks:
        ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == 10) + place
        if len(ends):
            starts = np.concatenate([[begun], ends[:-1] + 1]).astype(np.int64)
            found = _blank(starts - place, ends - place, chunk)
            found[0] &= blank  # with what came of it before
            yield Spans(starts, (ends - starts).astype(np.int64), number + np.arange(len(ends))), found
            begun, number, blank = int(ends[-1]) + 1, number + len(ends), True
        blank = blank and not chunk[max(0, begun - place) :].strip()
        place += len(chunk)
    if begun < place:
        yield Spans(np.array([begun]), np.array([place - begun]), np.array([number])), np.array([blank])


def _blank(starts: Ints, ends: Ints, chunk: bytes) -> npt.NDArray[np.bool_]:
    """Which lines of a chunk hold nothing but white space there; only those that begin with it are looked at."""
    starts = np.maximum(starts, 0)
    found = starts == ends
    first = np.frombuffer(chunk, np.uint8)[np.minimum(starts, len(chunk) - 1)]
    for row in np.flatnonzero(_SPACE[first] & ~found).tolist():
        start, end = int(starts[row]), int(ends[row])
        found[row] = not chunk[start : min(end, start + _SHORT)].strip() and not chunk[start:end].strip()
    return np.asarray(found)


def _paragraphs(lines: Iterator[tuple[Spans, npt.NDArray[np.bool_]]]) -> Iterator[Spans]:
    """Runs of lines without a blank one among them."""
    open_start, open_end, open_line = -1, -1, -1
    for spans, blank in lines:
        found: list[tuple[int, int, int]] = []
        rows = zip(spans.starts.tolist(), spans.sizes.tolist(), spans.lines.tolist(), blank.tolist(), strict=True)
        for start, size, line, is_blank in rows:
            if is_blank:
                if open_start >= 0:
                    found.append((open_start, open_end - open_start, open_line))
                open_start = -1
                continue
            if open_start < 0:
                open_start, open_line = start, line
            open_end = start + size
        yield _spans(found)
    if open_start >= 0:
        yield _spans([(open_start, open_end - open_start, open_line)])


def _spans(found: list[tuple[int, int, int]]) -> Spans:
    table = np.array(found, np.int64).reshape(-1, 3)
    return Spans(table[:, 0], table[:, 1], table[:, 2])
