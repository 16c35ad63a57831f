"""Refs as column files: written while scanning, mapped by the workers, so that a million cost no Python objects."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from packer.sample import Ref

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = ["Common", "RefTable", "RefWriter"]

_ROW = np.dtype(
    [
        ("end", "<u8"),
        ("size", "<u8"),
        ("mtime_ns", "<i8"),
        ("offset", "<i8"),
        ("packed", "<u8"),
        ("label", "<i4"),
        ("outer", "<u4"),
        ("source", "<i2"),
        ("split", "<i2"),
    ]
)


@dataclass(frozen=True, slots=True)
class Common:
    """What the samples of one folder have in common."""

    prefix: bytes = b""
    """What stands before their names."""
    label: int = -1
    split: int = -1
    """Number of the source's own split."""
    source: int = 0
    outer: int = 0


@dataclass
class Places:
    """Where samples lie: a row per sample."""

    sizes: Sequence[int]
    mtimes: Sequence[int]
    offsets: Sequence[int] = field(default_factory=list)
    """Empty for files of their own."""
    packed: Sequence[int] = field(default_factory=list)


class RefWriter:
    """Appends refs to `names.bin` and `rows.bin` in a folder; a context manager."""

    def __init__(self, folder: Path, heard: Callable[[int], None] | None = None) -> None:
        """Start afresh in an existing folder; `heard` is told the number of refs now and then."""
        self._names: BinaryIO = (folder / "names.bin").open("wb")
        self._rows: BinaryIO = (folder / "rows.bin").open("wb")
        self._end = 0
        self._digest = hashlib.sha256()
        self._heard = heard or (lambda _: None)
        self.count = 0
        self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._names.close()
        self._rows.close()

    def add(self, names: Sequence[bytes], places: Places, common: Common) -> None:
        """Take the samples of a folder: names behind `common.prefix`, in order."""
        if not names:
            return
        rows = np.zeros(len(names), _ROW)
        lengths = np.fromiter(map(len, names), np.int64, len(names)) + len(common.prefix)
        rows["end"] = self._end + np.cumsum(lengths)
        rows["size"], rows["mtime_ns"] = places.sizes, places.mtimes
        rows["offset"] = places.offsets if len(places.offsets) else -1
        if len(places.packed):
            rows["packed"] = places.packed
        rows["label"], rows["split"] = common.label, common.split
        rows["source"], rows["outer"] = common.source, common.outer
        text = common.prefix + common.prefix.join(names)
        self._end += len(text)
        self.count += len(names)
        self.bytes += int(rows["size"].sum())
        for file, data in ((self._names, text), (self._rows, rows.tobytes())):
            file.write(data)
            self._digest.update(data)
        self._heard(self.count)

    def note(self, extra: bytes) -> None:
        """Let something else count in the digest, such as the state of an archive."""
        self._digest.update(struct.pack("<Q", len(extra)) + extra)

    def digest(self, extra: bytes) -> str:
        """SHA-256 of everything added so far and of `extra`."""
        self._names.flush()
        self._rows.flush()
        whole = self._digest.copy()
        whole.update(struct.pack("<Q", len(extra)) + extra)
        return whole.hexdigest()


class RefTable:
    """Mapped refs; `table[i]` is a `Ref`."""

    def __init__(self, folder: Path) -> None:
        """Map what a `RefWriter` left in the folder."""
        self._rows: npt.NDArray[Any] = _map(folder / "rows.bin", _ROW)
        self._names: npt.NDArray[Any] = _map(folder / "names.bin", np.dtype("u1"))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Ref:
        return self.some(np.array([number]))[0]

    def some(self, numbers: npt.NDArray[np.int64]) -> list[Ref]:
        """Several refs."""
        rows, starts = self._rows[numbers].tolist(), self._rows["end"][numbers - 1].tolist()
        found = []
        for number, start, row in zip(numbers.tolist(), starts, rows, strict=True):
            end, size, mtime_ns, offset, packed, label, outer, source, _ = row
            name = self._names[start if number else 0 : end].tobytes().decode("utf-8", "surrogateescape")
            found.append(Ref(name, size, mtime_ns, label, source, outer, offset, packed, number))
        return found

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
        return self._rows["label"].astype(np.int64)

    @property
    def splits(self) -> npt.NDArray[np.int16]:
        """Numbers of the source's own splits, int16 (n,); -1 without them."""
        return np.asarray(self._rows["split"])

    @property
    def sizes(self) -> npt.NDArray[np.uint64]:
        """Bytes of the files, u64 (n,)."""
        return np.asarray(self._rows["size"])

    @property
    def mtimes(self) -> npt.NDArray[np.int64]:
        """Modification times, int64 (n,), in nanoseconds."""
        return np.asarray(self._rows["mtime_ns"])


def _map(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r")
