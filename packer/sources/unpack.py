"""Files as the bytes that were packed into them: plain, gzip and Zstandard, in pieces."""

from __future__ import annotations

import gzip
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, BinaryIO

from packer_reader.errors import MissingError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PACKED", "beginning", "chunks_of"]

PACKED = (".gz", ".zst")
"""Extensions of compressed files."""
_CHUNK = 8 << 20
_PACKED_CHUNK = 1 << 16
"""Bytes unpacked at a time: they may become many."""


def chunks_of(path: bytes, name: str) -> Iterator[bytes]:
    """A file as the bytes that were packed into it.

    Raises:
        EOFError: it ends before what was packed does.
    """
    with open(path, "rb") as file:  # noqa: PTH123 - names may be no valid text
        if name.lower().endswith(".zst"):
            yield from _unpacked(file, name)
            return
        with gzip.GzipFile(fileobj=file) if name.lower().endswith(".gz") else nullcontext(file) as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk


def _unpacked(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Frames of Zstandard, one behind the other. The library's own reader says nothing of one that is cut short."""
    try:
        import zstandard  # noqa: PLC0415 - only these files need it
    except ImportError:
        raise MissingError(f"{name!r} needs zstandard: pip install 'packer-data[text]'") from None
    frame: Any = None
    while data := file.read(_PACKED_CHUNK):
        while data:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                yield frame.decompress(data)
            except zstandard.ZstdError as error:
                raise SourceError(f"{name!r} is damaged ({error}): copy it again") from None
            data = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("the last frame is cut short")


def beginning(chunks: Iterator[bytes], limit: int) -> bytes:
    """All of a file, or a byte more than is allowed."""
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > limit:
            return bytes(data[: limit + 1])
    return bytes(data)
