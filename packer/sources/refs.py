"""Refs as column files: written while scanning, mapped by the workers, so that a million cost no Python objects."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from packer.sample import Ref

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["RefTable", "RefWriter"]

_FLUSH = 1 << 15
"""Rows held in memory while scanning."""
_ROW = np.dtype([("end", "<u8"), ("size", "<u8"), ("mtime_ns", "<i8"), ("label", "<i8"), ("split", "<i4")])


class RefWriter:
    """Appends refs to `names.bin` and `rows.bin` in a folder; a context manager."""

    def __init__(self, folder: Path) -> None:
        """Start afresh in an existing folder."""
        self._names: BinaryIO = (folder / "names.bin").open("wb")
        self._rows: BinaryIO = (folder / "rows.bin").open("wb")
        self._pending_names: list[bytes] = []
        self._pending: list[tuple[int, int, int, int, int]] = []
        self._end = 0
        self._digest = hashlib.sha256()
        self.count = 0
        self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._names.close()
        self._rows.close()

    def add(self, ref: Ref, split: int = -1) -> None:
        """Take the next ref; `split` numbers the source's own splits."""
        raw = ref.name.encode("utf-8", "surrogateescape")
        self._end += len(raw)
        self._pending_names.append(raw)
        self._pending.append((self._end, ref.size, ref.mtime_ns, ref.label, split))
        self.count += 1
        self.bytes += ref.size
        if len(self._pending) >= _FLUSH:
            self._flush()

    def digest(self, extra: bytes) -> str:
        """SHA-256 of everything added so far and of `extra`."""
        self._flush()
        whole = self._digest.copy()
        whole.update(struct.pack("<Q", len(extra)) + extra)
        return whole.hexdigest()

    def _flush(self) -> None:
        names, rows = b"".join(self._pending_names), np.array(self._pending, _ROW).tobytes()
        self._names.write(names)
        self._rows.write(rows)
        self._names.flush()
        self._rows.flush()
        self._digest.update(names)
        self._digest.update(rows)
        self._pending_names.clear()
        self._pending.clear()


class RefTable:
    """Mapped refs; `table[i]` is a `Ref`."""

    def __init__(self, folder: Path) -> None:
        """Map what a `RefWriter` left in the folder."""
        self._rows: npt.NDArray[Any] = _map(folder / "rows.bin", _ROW)
        self._names: npt.NDArray[Any] = _map(folder / "names.bin", np.dtype("u1"))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Ref:
        row = self._rows[number]
        return Ref(self.name(number), int(row["size"]), int(row["mtime_ns"]), int(row["label"]))

    def name(self, number: int) -> str:
        """The ref's source name."""
        start = int(self._rows["end"][number - 1]) if number else 0
        raw = self._names[start : int(self._rows["end"][number])].tobytes()
        return raw.decode("utf-8", "surrogateescape")

    def names(self) -> Iterator[str]:
        """All names in order."""
        return (self.name(number) for number in range(len(self)))

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Class indices, int64 (n,); -1 without classes."""
        return np.asarray(self._rows["label"])

    @property
    def splits(self) -> npt.NDArray[np.int32]:
        """Numbers of the source's own splits, int32 (n,); -1 without them."""
        return np.asarray(self._rows["split"])

    @property
    def sizes(self) -> npt.NDArray[np.uint64]:
        """Bytes of the files, u64 (n,)."""
        return np.asarray(self._rows["size"])


def _map(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r")
