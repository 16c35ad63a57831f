"""The content digest: what a store holds, whatever container it is in (specification, section 7)."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer_reader.format.columns import canonical_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer_reader.format.index import Index

__all__ = ["PART", "ContentDigest"]

PART = 1 << 16
"""Keys per part: parts are hashed by themselves, so that many processes can share the work."""


class ContentDigest:
    """SHA-256 over the samples in key order: key, and per field size and CRC-32.

    Example:
        >>> digest = ContentDigest(["cls"])
        >>> len(digest.hexdigest())
        64
    """

    def __init__(self, suffixes: Sequence[str]) -> None:
        """Begin with the store's fields in stored order."""
        self._outer = hashlib.sha256(canonical_json(list(suffixes)))
        self._part: int | None = None
        self._inner = hashlib.sha256()

    def add(self, index: Index) -> None:
        """Take the next samples; keys must go on rising."""
        rows = _rows(index)
        parts = index.key // np.uint64(PART)
        borders = np.flatnonzero(np.diff(parts)) + 1
        for chunk, first in zip(np.split(rows, borders), [0, *borders.tolist()], strict=True):
            if not len(chunk):
                continue
            part = int(parts[first])
            if part != self._part:
                self._close()
                self._part = part
            self._inner.update(chunk.tobytes())

    def _close(self) -> None:
        if self._part is not None:
            self._outer.update(struct.pack("<Q", self._part) + self._inner.digest())
            self._inner = hashlib.sha256()

    def hexdigest(self) -> str:
        """The digest; nothing can be added afterwards."""
        self._close()
        self._part = None
        return self._outer.hexdigest()


def _rows(index: Index) -> npt.NDArray[Any]:
    fields = [("key", "<u8")]
    for number in range(len(index.suffixes)):
        fields += [(f"size{number}", "<u8"), (f"crc{number}", "<u4")]
    rows = np.zeros(len(index), np.dtype(fields))
    rows["key"] = index.key
    for number in range(len(index.suffixes)):
        rows[f"size{number}"] = index.size[number]
        rows[f"crc{number}"] = index.crc[number]
    return rows
