"""XXH3: the fast checksum of what is under way and of sources. What stays in a store has CRC-32 and SHA-256."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Checksum", "content_hash", "file_noted", "noted"]

Checksum = xxhash.xxh3_64
"""64 bits over data that come in parts."""


def noted(data: bytes) -> tuple[int, int]:
    """Bytes and checksum of data, as the journal notes them."""
    return len(data), xxhash.xxh3_64_intdigest(data)


def file_noted(path: Path) -> tuple[int, int] | None:
    """The same of a file; None when it cannot be read."""
    checksum = Checksum()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 22):
                checksum.update(chunk)
            return file.tell(), checksum.intdigest()
    except OSError:
        return None


def content_hash(image: Any) -> bytes:
    """XXH3 (128 bits) of a source's bytes, or of its pixels behind a line with their dtype and shape.

    It takes 5 us for a photograph of 86 kB; SHA-256 takes 55.
    """
    if isinstance(image, bytes):
        return xxhash.xxh3_128_digest(image)
    return xxhash.xxh3_128_digest(f"{image.dtype.str} {image.shape}\n".encode() + image.tobytes())
