"""The bytes of a ref: a file of its own, or a part of an archive file."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING

from packer_reader.errors import SampleError
from packer_reader.format.crc import crc32

if TYPE_CHECKING:
    from packer.sample import Ref

__all__ = ["read_ref"]

_MAX_FILE = 1 << 31
"""Bytes of a sample's file; it is read whole."""
_CHANGED = "the file has changed since the source was listed"


def read_ref(root: str, ref: Ref) -> bytes:
    """The bytes of one sample, exactly as they were when the source was listed.

    Raises:
        SampleError: vanished, changed, unreadable, empty, damaged or too large.
    """
    if max(ref.size, ref.packed) > _MAX_FILE:
        size = max(ref.size, ref.packed)
        raise SampleError("too-large", f"the file has {size} bytes, images have at most {_MAX_FILE}")
    path = ref.name.encode("utf-8", "surrogateescape")[ref.prefix :]
    try:
        data = _member(os.fsencode(root), path, ref) if ref.offset >= 0 else _file(os.fsencode(root) + b"/" + path, ref)
    except FileNotFoundError:
        raise SampleError("vanished", "the file was there when the source was listed and is gone") from None
    except OSError as error:
        raise SampleError("unreadable", f"the system refused to read it ({error.strerror})") from None
    if not data:
        raise SampleError("empty", "the file has no bytes")
    return data


def _file(path: bytes, ref: Ref) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = _read(file, ref.size + 1)  # a byte more shows that it grew; a file that grows for ever ends here
        if data and (len(data) != ref.size or os.fstat(file).st_mtime_ns != ref.mtime_ns):
            raise SampleError("vanished", _CHANGED)
    finally:
        os.close(file)
    return data


def _read(file: int, size: int) -> bytes:
    data = os.read(file, size)
    if len(data) in {0, size - 1, size}:
        return data
    parts = [data]
    while data:
        data = os.read(file, size - sum(map(len, parts)))
        parts.append(data)
    return b"".join(parts)


def _member(root: bytes, path: bytes, ref: Ref) -> bytes:
    file = os.open(root + (b"/" + path[: ref.outer] if ref.outer else b""), os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(file).st_mtime_ns != ref.mtime_ns:
            raise SampleError("vanished", "the archive has changed since the source was listed")
        data = os.pread(file, ref.packed or ref.size, ref.offset)
    finally:
        os.close(file)
    if ref.packed:
        try:
            data = zlib.decompressobj(-15).decompress(data, ref.size + 1)
        except zlib.error:
            raise SampleError("corrupt", "the archive member does not inflate") from None
    if len(data) != ref.size:
        raise SampleError("corrupt" if ref.packed else "truncated", "the archive member has another size than it says")
    if ref.crc >= 0 and crc32(data) != ref.crc:
        raise SampleError("corrupt", "the archive member is not what its checksum says")
    return data
