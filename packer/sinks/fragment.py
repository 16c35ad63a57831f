"""What a worker writes for one unit: samples in the container's framing, and where each part of them lies."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer.checksum import Checksum
from packer_reader.format.array import ARRAY_HEADER, array_header
from packer_reader.format.crc import crc32
from packer_reader.format.record import PACK_BELOW, PACK_TARGET, pack_samples, sample_parts
from packer_reader.format.tar import BLOCK, member_header, member_name, member_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Self

__all__ = ["FRAGMENTS", "Fragment", "LmdbFragment", "TarFragment"]

Array = npt.NDArray[Any]

_TOGETHER = 1 << 17
"""Bytes that are written at a time."""
_MOST_PARTS = 1000
"""Parts that one call takes: the system's limit is 1,024."""
_EMPTY_PACK, _RECORD = 5, 10
"""Bytes of a shared value's header, and of what stands before each of its maps."""


class Fragment:
    """A file being written and its index rows; a context manager."""

    def __init__(self, path: Path, suffixes: Sequence[str]) -> None:
        """Begin an empty fragment, replacing an older one."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._pending: list[bytes | memoryview] = []
        self._written = 0
        """Bytes in the file; those behind are pending."""
        self._suffixes = tuple(suffixes)
        self._keys: list[int] = []
        self._offsets: list[list[int]] = []
        self._sizes: list[list[int]] = []
        self._crcs: list[list[int]] = []
        self._blocks: list[int] = []
        """Of samples in blocks the keys of their records."""
        self.bytes = 0
        self.checksum = Checksum()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
                self._flush()
        finally:
            os.close(self._file)

    def add(self, key: int, blobs: Sequence[bytes | memoryview], crc: int | None = None) -> None:
        """Append one sample; keys must rise.

        Args:
            key: of the sample.
            blobs: its fields.
            crc: CRC-32 of the first one, where it is known: for a copied image computing it again takes 8 us of 50.
        """
        raise NotImplementedError

    def add_block(self, keys: Sequence[int], fields: Sequence[Array | Sequence[Array]]) -> None:
        """Append a record that holds a block of samples: per field an array, of which each sample has a row.

        Args:
            keys: of the samples, rising; the first is the record's.
            fields: by field an array with a row per sample; or, of what has a length of its own in each sample, a list
                of arrays (length,), which lie end to end.
        """
        blobs = list[bytes]()
        for rows in fields:
            whole = rows if isinstance(rows, np.ndarray) else np.concatenate(rows)
            blobs.append(array_header(whole.dtype.str, whole.shape) + whole.tobytes())
        starts = self._record(keys[0], blobs)
        ends = [np.cumsum([row.nbytes for row in rows]).tolist() for rows in fields]
        self._keys += keys
        for place in range(len(keys)):
            sizes = [rows[place].nbytes for rows in fields]
            self._sizes.append(sizes)
            self._offsets.append(
                [start + ARRAY_HEADER + end[place] - size for start, end, size in zip(starts, ends, sizes, strict=True)]
            )
            self._crcs.append([crc32(rows[place].tobytes()) for rows in fields])
        self._blocks += [keys[0]] * len(keys)

    def _record(self, key: int, blobs: Sequence[bytes | memoryview]) -> list[int]:
        """Append a block's record; returns where each field begins, as its samples' offsets count."""
        raise NotImplementedError

    def arrays(self) -> dict[str, Array]:
        """Index rows relative to the fragment; per-field arrays are (fields, n)."""
        fields = len(self._suffixes)

        def by_field(rows: list[list[int]], dtype: str) -> Array:
            return np.array(rows, dtype).reshape(-1, fields).T

        blocks = {"value": np.array(self._blocks, "<u8")} if self._blocks else {}
        return blocks | {
            "key": np.array(self._keys, "<u8"),
            "offset": by_field(self._offsets, "<u8"),
            "size": by_field(self._sizes, "<u4"),
            "crc": by_field(self._crcs, "<u4"),
        }

    def _finish(self) -> None:
        """Write what is still held."""

    def _note(self, key: int, offsets: list[int], blobs: Sequence[bytes | memoryview], crc: int | None) -> None:
        self._keys.append(key)
        self._offsets.append(offsets)
        self._sizes.append([len(blob) for blob in blobs])
        first = crc32(blobs[0]) if crc is None else crc
        self._crcs.append([first, *(crc32(blob) for blob in blobs[1:])])

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Append what lies end to end; it is held until there is enough, and copied nowhere before it is written."""
        if len(self._pending) + len(parts) > _MOST_PARTS:
            self._flush()
        for part in parts:
            self.checksum.update(part)
            self.bytes += len(part)
        self._pending += parts
        if self.bytes - self._written >= _TOGETHER:
            self._flush()

    def _flush(self) -> None:
        while self._written < self.bytes:
            count = os.writev(self._file, self._pending)
            self._written += count
            while self._pending and count >= len(self._pending[0]):
                count -= len(self._pending.pop(0))
            if count:
                self._pending[0] = memoryview(self._pending[0])[count:]
        self._pending.clear()


class TarFragment(Fragment):
    """A run of tar members."""

    def __init__(self, path: Path, suffixes: Sequence[str]) -> None:
        """Begin an empty fragment, replacing an older one."""
        super().__init__(path, suffixes)
        self._lengths: list[int] = []

    def add(self, key: int, blobs: Sequence[bytes | memoryview], crc: int | None = None) -> None:
        """Append the members of one sample."""
        self._note(key, self._record(key, blobs), blobs, crc)

    def add_block(self, keys: Sequence[int], fields: Sequence[Array | Sequence[Array]]) -> None:
        """Append the members of a block; see `Fragment.add_block`. All of their length counts for its first sample."""
        super().add_block(keys, fields)
        self._lengths += [0] * (len(keys) - 1)

    def _record(self, key: int, blobs: Sequence[bytes | memoryview]) -> list[int]:
        parts, offsets, place = [], [], self.bytes
        for suffix, blob in zip(self._suffixes, blobs, strict=True):
            parts += [member_header(member_name(key, suffix), len(blob)), blob, bytes(-len(blob) % BLOCK)]
            offsets.append(place + BLOCK)
            place += member_size(len(blob))
        self._lengths.append(place - self.bytes)
        self._write(parts)
        return offsets

    def arrays(self) -> dict[str, Array]:
        """Index rows, and `length`: bytes of each sample's members."""
        return super().arrays() | {"length": np.array(self._lengths, "<u8")}


class LmdbFragment(Fragment):
    """A run of LMDB values; samples under 16 KB share one."""

    def __init__(self, path: Path, suffixes: Sequence[str]) -> None:
        """Begin an empty fragment, replacing an older one."""
        super().__init__(path, suffixes)
        self._values: list[int] = []
        self._value_keys: list[int] = []
        self._value_sizes: list[int] = []
        self._held: list[tuple[int, bytes, list[int], Sequence[bytes | memoryview], int | None]] = []
        self._held_bytes = _EMPTY_PACK

    def add(self, key: int, blobs: Sequence[bytes | memoryview], crc: int | None = None) -> None:
        """Append one sample, or hold it until its value is full."""
        parts, offsets = sample_parts(self._suffixes, blobs)
        if sum(map(len, parts)) >= PACK_BELOW:
            self._finish()
            self._note(key, offsets, blobs, crc)
            self._value(key, parts, 1)
            return
        encoded = b"".join(parts)
        if self._held_bytes + len(encoded) + _RECORD > PACK_TARGET:
            self._finish()
        self._held.append((key, encoded, offsets, blobs, crc))
        self._held_bytes += len(encoded) + _RECORD

    def _finish(self) -> None:
        if not self._held:
            return
        value, starts = pack_samples([key for key, *_ in self._held], [encoded for _, encoded, *_ in self._held])
        for start, (key, _, offsets, blobs, crc) in zip(starts, self._held, strict=True):
            self._note(key, [start + offset for offset in offsets], blobs, crc)
        self._value(self._held[0][0], [value], len(self._held))
        self._held, self._held_bytes = [], _EMPTY_PACK

    def _record(self, key: int, blobs: Sequence[bytes | memoryview]) -> list[int]:
        parts, offsets = sample_parts(self._suffixes, blobs)
        self._value(key, parts, 0)
        return offsets

    def _value(self, key: int, parts: Sequence[bytes | memoryview], samples: int) -> None:
        before = self.bytes
        self._write(parts)
        self._value_keys.append(key)
        self._value_sizes.append(self.bytes - before)
        self._values += [key] * samples

    def arrays(self) -> dict[str, Array]:
        """Index rows with `value`, and the values themselves: `value.key`, `value.size`."""
        extra = {
            "value": np.array(self._values or self._blocks, "<u8"),
            "value.key": np.array(self._value_keys, "<u8"),
            "value.size": np.array(self._value_sizes, "<u8"),
        }
        return super().arrays() | extra


FRAGMENTS: Mapping[str, type[Fragment]] = {"tar": TarFragment, "lmdb": LmdbFragment}
