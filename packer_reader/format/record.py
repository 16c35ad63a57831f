"""LMDB values: msgpack maps from suffix to bytes, small ones packed together (specification, section 6)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgpack

from packer_reader.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "MAX_FIELD",
    "MAX_FIELDS",
    "PACK_BELOW",
    "PACK_TARGET",
    "key_bytes",
    "pack_samples",
    "parse_value",
    "sample_parts",
]

MAX_FIELD = 2**32 - 1
"""Bytes of one field: the limit of msgpack's bin 32."""
MAX_FIELDS = 15
"""Fields of a sample: the limit of msgpack's one-byte map header."""
PACK_BELOW = 16 << 10
"""Records under this size share a value; LMDB rounds larger values up to pages, at most 10 % lost from here on."""
PACK_TARGET = 16 * 4096 - 16
"""Bytes of a shared value: just under 16 pages with LMDB's 16-byte page header."""
_ARRAY_HEADER = 5
"""A shared value begins with msgpack's array 32 header whatever its length, so that offsets are known at once."""
_KEY_HEADER = 10
"""In a shared value a record is the array (key as uint 64, map): 1 + 9 bytes stand before its map."""


def key_bytes(key: int) -> bytes:
    """An LMDB key: 8 bytes, big-endian, so that byte order is key order."""
    return struct.pack(">Q", key)


def sample_parts(
    suffixes: Sequence[str], blobs: Sequence[bytes | memoryview]
) -> tuple[list[bytes | memoryview], list[int]]:
    """One sample as a msgpack map, in parts that lie end to end, so that large blobs are not copied.

    Returns:
        The parts, and where each blob begins in the map.

    Example:
        >>> parts, offsets = sample_parts(["cls"], [b"7"])
        >>> msgpack.unpackb(b"".join(parts)), b"".join(parts)[offsets[0]:]
        ({'cls': b'7'}, b'7')
    """
    parts, offsets = list[bytes | memoryview]([bytes([0x80 | len(suffixes)])]), list[int]()
    size = 1
    for suffix, blob in zip(suffixes, blobs, strict=True):
        name = suffix.encode()
        header = bytes([0xA0 | len(name)]) if len(name) < 32 else bytes([0xD9, len(name)])
        head = header + name + _bin_header(len(blob))
        offsets.append(size + len(head))
        parts += [head, blob]
        size += len(head) + len(blob)
    return parts, offsets


def _bin_header(size: int) -> bytes:
    if size < 1 << 8:
        return bytes([0xC4, size])
    if size < 1 << 16:
        return struct.pack(">BH", 0xC5, size)
    return struct.pack(">BI", 0xC6, size)


def pack_samples(keys: Sequence[int], maps: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """Several small samples as one value: a msgpack array of (key, map).

    Returns:
        The value, and where each map begins in it.
    """
    parts, offsets = [struct.pack(">BI", 0xDD, len(maps))], []
    size = _ARRAY_HEADER
    for key, encoded in zip(keys, maps, strict=True):
        parts += [struct.pack(">BBQ", 0x92, 0xCF, key), encoded]
        offsets.append(size + _KEY_HEADER)
        size += _KEY_HEADER + len(encoded)
    return b"".join(parts), offsets


def parse_value(key: int, value: bytes | memoryview) -> dict[int, dict[str, bytes]]:
    """The samples of one value, by key, read as any msgpack library would.

    Raises:
        FormatError: the value is neither form.
    """
    what = f"value of key {key}"
    try:
        document: Any = msgpack.unpackb(value, raw=False)
    except (ValueError, msgpack.UnpackException):
        raise FormatError(what, ["is not msgpack"]) from None
    samples: Any = [[key, document]] if isinstance(document, dict) else document
    try:
        found = {int(k): dict(fields) for k, fields in samples}
    except (TypeError, ValueError):
        raise FormatError(what, ["is neither a map nor an array of (key, map)"]) from None
    for fields in found.values():
        if not all(isinstance(name, str) and isinstance(blob, bytes) for name, blob in fields.items()):
            raise FormatError(what, ["holds something other than bytes by suffix"])
    return found
