"""Framed arrays: the one binary layout of index, column and shard-table files (specification, section 3).

    magic (8) | header length u64 | header, canonical JSON | zeros to 64 | array | zeros to 64 | array ...

The header names the arrays in order with dtype and shape, so each offset follows and the file's size is known before
the arrays are: a frame can be written as a stream and mapped without being parsed.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer_reader.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "COLUMN_MAGIC",
    "DTYPES",
    "INDEX_MAGIC",
    "ArraySpec",
    "Frame",
    "StringColumn",
    "canonical_json",
    "frame_bytes",
    "frame_header",
    "join_strings",
    "padding",
    "parse_frame",
]

INDEX_MAGIC = b"PKINDEX1"
COLUMN_MAGIC = b"PKCOLMN1"
ALIGN = 64
"""A cache line: every array can be read by aligned vector loads from a map."""
MAX_HEADER = 1 << 20
"""Checked before the header is decoded."""
DTYPES = frozenset({"|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8"})

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ArraySpec:
    """One array of a frame."""

    name: str
    dtype: str
    """A numpy type string out of `DTYPES`: little-endian, no objects."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the array without padding, in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Frame:
    """A parsed frame: read-only views into the buffer it came from."""

    meta: Mapping[str, Any]
    arrays: Mapping[str, Array]


class StringColumn:
    """Strings over two mapped arrays; as a sequence of str, undecodable bytes as surrogate escapes."""

    def __init__(self, offsets: Array, data: Array) -> None:
        """Take offsets u64 (n + 1,) and UTF-8 bytes u8 (m,)."""
        self._offsets, self._data = offsets, data

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> str:
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        number %= len(self)
        start, stop = int(self._offsets[number]), int(self._offsets[number + 1])
        return self._data[start:stop].tobytes().decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def find(self, text: str) -> int | None:
        """The first sample number whose string is exactly `text`, or None."""
        wanted = text.encode("utf-8", "surrogateescape")
        lengths = np.diff(self._offsets)
        for number in np.flatnonzero(lengths == len(wanted)).tolist():
            start = int(self._offsets[number])
            if self._data[start : start + len(wanted)].tobytes() == wanted:
                return int(number)
        return None


def canonical_json(document: Any) -> bytes:
    """JSON in the one form that hashes use: sorted keys, ASCII, no spaces, no NaN."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def padding(size: int) -> int:
    """Zero bytes from `size` to the next multiple of 64."""
    return -size % ALIGN


def frame_header(magic: bytes, meta: Mapping[str, Any], arrays: Sequence[ArraySpec]) -> bytes:
    """Everything of a frame before its first array, padding included."""
    header = canonical_json({"arrays": [[a.name, a.dtype, list(a.shape)] for a in arrays], "meta": dict(meta)})
    start = magic + struct.pack("<Q", len(header)) + header
    return start + bytes(padding(len(start)))


def frame_bytes(magic: bytes, meta: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """A whole frame from arrays in memory.

    Example:
        >>> frame = frame_bytes(COLUMN_MAGIC, {"column": "label"}, {"values": np.arange(3, dtype="<i8")})
        >>> parse_frame("label.col", COLUMN_MAGIC, frame).arrays["values"].tolist()
        [0, 1, 2]
    """
    specs = [ArraySpec(name, a.dtype.newbyteorder("<").str, a.shape) for name, a in arrays.items()]
    parts = [frame_header(magic, meta, specs)]
    for place, (spec, array) in enumerate(zip(specs, arrays.values(), strict=True)):
        parts.append(np.ascontiguousarray(array, spec.dtype).tobytes())
        if place < len(specs) - 1:
            parts.append(bytes(padding(spec.nbytes)))
    return b"".join(parts)


def join_strings(texts: Sequence[str]) -> tuple[Array, Array]:
    """Offsets u64 (n + 1,) and bytes u8 (m,) of a string column."""
    blobs = [t.encode("utf-8", "surrogateescape") for t in texts]
    offsets = np.zeros(len(blobs) + 1, np.uint64)
    np.cumsum([len(b) for b in blobs], out=offsets[1:])
    return offsets, np.frombuffer(b"".join(blobs), np.uint8)


def parse_frame(what: str, magic: bytes, data: bytes | memoryview) -> Frame:
    """Check a frame and view its arrays.

    Args:
        what: the file's name, for messages.
        magic: which kind of frame is expected.
        data: the whole file, usually a map.

    Raises:
        FormatError: not such a frame, or its size is not the one its header gives.
    """
    view = memoryview(data)
    if len(view) < 16 or bytes(view[:8]) != magic:
        raise FormatError(what, [f"does not begin with {magic.decode()}: not such a file, or cut short"])
    (length,) = struct.unpack("<Q", view[8:16])
    if length > min(MAX_HEADER, len(view) - 16):
        raise FormatError(what, [f"header length {length} is over the limit or the file"])
    specs, meta = _parse_header(what, bytes(view[16 : 16 + length]))
    arrays: dict[str, Array] = {}
    end = 16 + length
    for spec in specs:
        start = end + padding(end)
        end = start + spec.nbytes
        if end > len(view):
            raise FormatError(what, [f"array {spec.name!r} ends at byte {end}, the file at {len(view)}: cut short"])
        array = np.frombuffer(view[start:end], spec.dtype).reshape(spec.shape)
        array.flags.writeable = False
        arrays[spec.name] = array
    if not specs:
        end += padding(end)
    if end != len(view):
        raise FormatError(what, [f"has {len(view)} bytes, its header says {end}"])
    return Frame(meta, arrays)


def _parse_header(what: str, header: bytes) -> tuple[list[ArraySpec], dict[str, Any]]:
    try:
        document = json.loads(header)
        listed, meta = document["arrays"], document["meta"]
        specs = [ArraySpec(str(name), str(dtype), tuple(shape)) for name, dtype, shape in listed]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise FormatError(what, ["header is not the JSON object that the format asks for"]) from None
    problems = []
    if not isinstance(meta, dict):
        problems.append("header: meta is no object")
    if len({s.name for s in specs}) != len(specs):
        problems.append("header: an array is named twice")
    for spec in specs:
        sides_fit = all(type(side) is int and 0 <= side < 1 << 48 for side in spec.shape)
        if spec.dtype not in DTYPES or not 1 <= len(spec.shape) <= 2 or not sides_fit:
            problems.append(f"header: array {spec.name!r} has dtype {spec.dtype!r} and shape {spec.shape!r}")
    if problems:
        raise FormatError(what, problems)
    return specs, meta
