"""Refs as column files: written while scanning, mapped by the workers, so that a million cost no Python objects."""

from __future__ import annotations

import hashlib
import os
import struct
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from packer.sample import Ref
from packer_reader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "KEPT", "SPOOL", "Common", "Places", "RefTable", "RefWriter", "map_array", "open_rows", "prefixes_of", "tell_apart",
]  # fmt: skip

SPOOL = "spool.bin"
"""File of what `RefWriter.keep` keeps."""
KEPT = -2
"""In place of a CRC: the sample lies in that file."""
_CHUNK = 1 << 15
"""Refs rewritten at a time."""

_ROW = np.dtype(
    [
        ("end", "<u8"),
        ("size", "<u8"),
        ("mtime_ns", "<i8"),
        ("offset", "<i8"),
        ("packed", "<u8"),
        ("crc", "<i8"),
        ("label", "<i4"),
        ("outer", "<u4"),
        ("prefix", "<u4"),
        ("source", "<i4"),
        ("split", "<i2"),
        ("extra", "<u8"),
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
    crcs: Sequence[int] = field(default_factory=list)
    labels: Sequence[int] = field(default_factory=list)
    """Empty where they all have the common one."""
    extras: Sequence[bytes] = field(default_factory=list)
    """What the source notes for itself; see `Ref.extra`."""


class RefWriter:
    """Appends refs to `names.bin`, `rows.bin` and `extras.bin` in a folder; a context manager."""

    def __init__(self, folder: Path, heard: Callable[[int], None] | None = None) -> None:
        """Start afresh in an existing folder; `heard` is told the number of refs now and then."""
        self._names: BinaryIO = (folder / "names.bin").open("wb")
        self._rows: BinaryIO = (folder / "rows.bin").open("wb")
        self._folder, self._spooled = folder, 0
        self._spool: BinaryIO | None = None
        self._extras: BinaryIO = (folder / "extras.bin").open("wb")
        self._end = self._extra_end = 0
        self._digest = hashlib.sha256()
        self._heard = heard or (lambda _: None)
        self.count = 0
        self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._names.close()
        self._rows.close()
        self._extras.close()
        if self._spool is not None:
            self._spool.close()

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
        rows["crc"] = places.crcs if len(places.crcs) else -1
        rows["label"] = places.labels if len(places.labels) else common.label
        rows["split"] = common.split
        if places.extras:
            rows["extra"] = np.cumsum(np.fromiter(map(len, places.extras), np.int64, len(names)))
        rows["extra"] += np.uint64(self._extra_end)
        rows["source"], rows["outer"] = common.source, common.outer
        text = common.prefix + common.prefix.join(names)
        self._end += len(text)
        self.count += len(names)
        self.bytes += int(rows["size"].sum())
        extras = b"".join(places.extras)
        self._extra_end += len(extras)
        for file, data in ((self._names, text), (self._rows, rows.tobytes()), (self._extras, extras)):
            file.write(data)
            self._digest.update(data)
        self._heard(self.count)

    def keep(self, data: bytes) -> int:
        """Keep the bytes of a sample that cannot be read at a place of one's choice later on; where they begin."""
        if self._spool is None:
            self._spool = (self._folder / SPOOL).open("wb")
        self._spooled += self._spool.write(data)
        self._digest.update(data)
        return self._spooled - len(data)

    def note(self, extra: bytes) -> None:
        """Let something else count in the digest, such as the state of an archive."""
        self._digest.update(struct.pack("<Q", len(extra)) + extra)

    def digest(self, extra: bytes) -> str:
        """SHA-256 of everything added so far and of `extra`."""
        self._names.flush()
        self._rows.flush()
        self._extras.flush()
        whole = self._digest.copy()
        whole.update(struct.pack("<Q", len(extra)) + extra)
        return whole.hexdigest()


class RefTable:
    """Mapped refs; `table[i]` is a `Ref`."""

    def __init__(self, folder: Path) -> None:
        """Map what a `RefWriter` left in the folder."""
        self.rows: npt.NDArray[Any] = map_array(folder / "rows.bin", _ROW)
        self._names: npt.NDArray[Any] = map_array(folder / "names.bin", np.dtype("u1"))
        self._extras: npt.NDArray[Any] = map_array(folder / "extras.bin", np.dtype("u1"))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Ref:
        return self.some(np.array([number]))[0]

    def some(self, numbers: npt.NDArray[np.int64]) -> list[Ref]:
        """Several refs."""
        rows, starts = self.rows[numbers].tolist(), self.rows[["end", "extra"]][numbers - 1].tolist()
        found = []
        for number, (start, begun), row in zip(numbers.tolist(), starts, rows, strict=True):
            end, size, mtime_ns, offset, packed, crc, label, outer, prefix, source, _, ended = row
            name = self._names[start if number else 0 : end].tobytes().decode("utf-8", "surrogateescape")
            extra = self._extras[begun if number else 0 : ended].tobytes() if len(self._extras) else b""
            found.append(Ref(name, size, mtime_ns, label, source, prefix, outer, offset, packed, crc, number, extra))
        return found

    def name(self, number: int) -> str:
        """The ref's source name."""
        return self.raw_name(number).decode("utf-8", "surrogateescape")

    def raw_name(self, number: int) -> bytes:
        """The ref's source name as the file system has it."""
        start = int(self.rows["end"][number - 1]) if number else 0
        return self._names[start : int(self.rows["end"][number])].tobytes()

    def names(self) -> Iterator[str]:
        """All names in order."""
        return (self.name(number) for number in range(len(self)))

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Class indices, int64 (n,); -1 without classes."""
        return self.rows["label"].astype(np.int64)

    @property
    def splits(self) -> npt.NDArray[np.int16]:
        """Numbers of the source's own splits, int16 (n,); -1 without them."""
        return np.asarray(self.rows["split"])

    @property
    def sizes(self) -> npt.NDArray[np.uint64]:
        """Bytes of the files, u64 (n,)."""
        return np.asarray(self.rows["size"])

    @property
    def files(self) -> npt.NDArray[np.bool_]:
        """Which are files of their own, bool (n,)."""
        return np.asarray(self.rows["offset"] < 0)

    @property
    def mtimes(self) -> npt.NDArray[np.int64]:
        """Modification times, int64 (n,), in nanoseconds."""
        return np.asarray(self.rows["mtime_ns"])


def prefixes_of(roots: Sequence[str]) -> tuple[bytes, ...]:
    """What tells names of one source from those of others: its own name, or its path below what all lie in.

    Nothing of where they lie on this machine comes into a name.
    """
    places = [Path(root).resolve() for root in roots]
    names = [place.name for place in places]
    if len(set(names)) < len(names):
        above = os.path.commonpath(places)
        names = [os.path.relpath(place, above) for place in places]
    return tuple(os.fsencode(f"{name}/") for name in names)


def tell_apart(folder: Path, prefixes: Sequence[bytes]) -> int:
    """Let names differ that several sources have in common: the later one's begins with a prefix.

    Names of one source differ already, and no other name changes, so that a set that grows keeps its names.

    Args:
        folder: of the refs.
        prefixes: by source.

    Returns:
        How many names were changed.

    Raises:
        SourceError: two still agree.
    """
    table = RefTable(folder)
    twice = _repeated(table)
    if not twice:
        return 0
    names, rows = folder / "names.new", folder / "rows.new"
    end = 0
    with names.open("wb") as name_file, rows.open("wb") as row_file:
        for start in range(0, len(table), _CHUNK):
            part = table.rows[start : start + _CHUNK].copy()
            for place in range(len(part)):
                prefix = prefixes[int(part["source"][place])] if start + place in twice else b""
                end += name_file.write(prefix + table.raw_name(start + place))
                part["end"][place] = end
                part["prefix"][place] = len(prefix)
            row_file.write(part.tobytes())
    names.replace(folder / "names.bin")
    rows.replace(folder / "rows.bin")
    left = _repeated(RefTable(folder))
    if left:
        name = RefTable(folder).name(min(left))
        raise SourceError(f"two sources hold {name!r}, also with the source's name before it: rename one of them")
    return len(twice)


def _repeated(table: RefTable) -> set[int]:
    """Refs whose name an earlier one has: by hash first, which a million names take 8 MB for."""
    hashes = np.fromiter(map(hash, table.names()), np.int64, len(table))
    order = np.argsort(hashes, kind="stable")
    repeated = set()
    for place in np.flatnonzero(np.diff(hashes[order]) == 0).tolist():
        one, other = int(order[place]), int(order[place + 1])
        if table.raw_name(one) == table.raw_name(other):
            repeated.add(other)
    return repeated


@contextmanager
def open_rows(folder: Path) -> Iterator[npt.NDArray[Any]]:
    """The refs of a folder as rows that may be changed, in place: the file is one of the staging folder."""
    rows = np.memmap(folder / "rows.bin", _ROW, "r+")
    yield rows
    rows.flush()


def map_array(path: Path, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A file as a read-only array; a plain one, since each slice of numpy's `memmap` class costs 2 us."""
    return np.asarray(np.memmap(path, dtype, "r")) if path.stat().st_size else np.empty(0, dtype)
