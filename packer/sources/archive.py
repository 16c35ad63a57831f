"""Tar and zip archives as folders, read in places: a scan notes where each member lies, a worker reads just that.

An archive may lie in another one as long as that one does not compress it. Links and special members are refused, never
followed; names that climb out or are absolute are refused; nothing is ever extracted.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import tarfile
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from packer.sources.tree import ARCHIVES, COMPRESSED, COMPRESSED_REASON, Level, is_junk, suffix_of
from packer_reader.errors import SampleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from packer.sources.tree import Files, Place

__all__ = ["Archive"]

_UTF8 = 1 << 11
_LOCAL = 30
"""Bytes of a zip member's own header, before its name."""
_BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, NotImplementedError, EOFError, struct.error, ValueError, RecursionError,
    MemoryError, OverflowError,
)  # fmt: skip
"""What the two libraries raise for archives that are damaged, or made to hurt."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A member's name as bytes, and where its content lies in the archive file."""

    name: bytes
    size: int = 0
    offset: int = 0
    packed: int = 0
    crc: int = -1
    """CRC-32 of the content, where the archive has one."""
    refused: tuple[str, str] | None = None
    """Failure class and reason of what cannot be read."""


class _Slice(io.RawIOBase):
    """A part of a file as a file: an archive inside an archive."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size, self._place = file, start, size, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        wanted = max(0, min(len(view), self._size - self._place))
        data = os.pread(self._file.fileno(), wanted, self._start + self._place)
        view[: len(data)] = data
        self._place += len(data)
        return len(data)


class Archive:
    """An archive file, or one inside it."""

    kind = "archive"

    def __init__(self, path: bytes, kind: bytes, start: int, size: int, state: tuple[int, int]) -> None:
        """An archive of a kind (`.tar`, `.zip`) at some bytes of a file; `state` is the file's size and mtime_ns."""
        self._path, self._kind, self._start, self._size = path, kind, start, size
        self._state = state
        self._inside = 0
        """Bytes of the archives in it."""
        self.archive: tuple[int, int] | None = state if start == 0 else None

    @classmethod
    def at(cls, path: bytes) -> Self:
        """The archive file at a path.

        Raises:
            OSError: it cannot be looked at.
        """
        found = os.stat(path)  # noqa: PTH116 - paths are bytes here
        return cls(path, suffix_of(path), 0, found.st_size, (found.st_size, found.st_mtime_ns))

    def level(self, wanted: Callable[[bytes], bool]) -> Level:
        """See `Place.level`.

        Raises:
            SampleError: the whole archive cannot be read.
        """
        root, self._inside = _Node(), 0
        if self._size == 0:
            raise SampleError("empty", "the archive has no bytes")
        try:
            with open(self._path, "rb") as file:  # noqa: PTH123 - paths are bytes here
                inside = io.BufferedReader(_Slice(file, self._start, self._size), 1 << 16)
                for member in (_tar_members if self._kind == b".tar" else _zip_members)(inside, self._size):
                    root.take(member, wanted, self)
        except _BROKEN:
            if not root.count:
                raise SampleError("corrupt", f"it is no {self._kind[1:].decode()} archive, or it is damaged") from None
            root.refused.append((b"(the rest of the archive)", "truncated", "the archive ends early or is damaged"))
        except OSError:
            raise SampleError("unreadable", "the system refused to read it") from None
        return root.level(wanted)

    def inner(self, kind: bytes, member: _Member) -> Archive | None:
        """An archive that is a member of this one; None when such members must overlap.

        A few kilobytes can list one inner archive a thousand times, and that one as well.
        """
        self._inside += member.size
        if self._inside > self._size:
            return None
        return Archive(self._path, kind, self._start + member.offset, member.size, self._state)

    def note(self, name: bytes, member: _Member, files: Files) -> None:
        """Add a member to a folder's files; its time is the archive file's, which is what can change."""
        files.names.append(name)
        files.sizes.append(member.size)
        files.mtimes.append(self._state[1])
        files.offsets.append(self._start + member.offset)
        files.packed.append(member.packed)
        files.crcs.append(member.crc)


class _Node:
    """One folder inside an archive."""

    archive: tuple[int, int] | None = None
    kind = "inside"

    def __init__(self) -> None:
        self._level = Level()
        self._below: dict[bytes, _Node] = {}
        self.refused = self._level.refused
        self.count = 0

    def take(self, member: _Member, wanted: Callable[[bytes], bool], archive: Archive) -> None:
        """Put a member into its folder."""
        self.count += 1
        parts = [part for part in member.name.split(b"/") if part not in {b"", b"."}]
        if member.name.startswith(b"/") or b".." in parts:
            suffix = suffix_of(member.name)
            if wanted(suffix) or suffix in ARCHIVES:
                self.refused.append((member.name, "unsupported", "the member's name leads out of the archive"))
            else:
                self._level.ignored[suffix] += 1
            return
        if not parts or any(is_junk(part) for part in parts):
            return
        node = self
        for part in parts[:-1]:
            node = node._below.setdefault(part, _Node())
        node._file(parts[-1], member, wanted, archive)

    def _file(self, name: bytes, member: _Member, wanted: Callable[[bytes], bool], archive: Archive) -> None:
        suffix, level = suffix_of(name), self._level
        holds = suffix in ARCHIVES or name.lower().endswith(COMPRESSED)
        if member.refused and (wanted(suffix) or holds):
            level.refused.append((name, *member.refused))
        elif wanted(suffix):
            archive.note(name, member, level.files)
        elif suffix in ARCHIVES and not member.packed:
            inner = archive.inner(suffix, member)
            if inner is None:
                level.refused.append((name, "corrupt", "the archives inside this one are larger than itself"))
            else:
                level.folders.append((name, inner))
        elif holds:
            level.refused.append((name, "unsupported", COMPRESSED_REASON))
        else:
            level.ignored[suffix] += 1

    def level(self, wanted: Callable[[bytes], bool]) -> Level:  # noqa: ARG002 - the seam's signature
        """See `Place.level`; sorted by name, whatever the order in the archive."""
        files = self._level.files
        order = self._once(sorted(range(len(files.names)), key=files.names.__getitem__))
        files.names = [files.names[i] for i in order]
        for name in ("sizes", "mtimes", "offsets", "packed", "crcs"):
            values = getattr(files, name)
            setattr(files, name, type(values)("q", (values[i] for i in order)))
        folders: list[tuple[bytes, Place]] = [*self._level.folders, *self._below.items()]
        self._level.folders = sorted(folders, key=lambda item: item[0])
        self._below = {}  # it may be looked at again
        return self._level

    def _once(self, order: list[int]) -> list[int]:
        """Places of the files, each name once: what comes again is refused."""
        names, kept = self._level.files.names, list[int]()
        for i in order:
            if kept and names[kept[-1]] == names[i]:
                self.refused.append((names[i], "duplicate", "the archive holds this name twice; the first is taken"))
            else:
                kept.append(i)
        return kept


def _tar_members(file: BinaryIO, total: int) -> Iterator[_Member]:
    with tarfile.open(fileobj=file, mode="r:", errors="surrogateescape") as tar:
        while (found := tar.next()) is not None:
            if found.size < 0 or tar.offset <= found.offset:
                raise tarfile.ReadError("a member that ends before it begins")
            tar.members = []  # type: ignore[attr-defined]  # or every member's description stays
            name = found.name.encode("utf-8", "surrogateescape")
            if found.isdir():
                continue
            if not found.isreg() or found.issparse():
                yield _Member(name, refused=("unsupported", "a link or special member of an archive is not followed"))
            elif found.offset_data + found.size > total:
                yield _Member(name, refused=("truncated", "the archive ends inside this member"))
                return
            else:
                yield _Member(name, found.size, found.offset_data)
        _check_end(file, tar.offset)


def _check_end(file: BinaryIO, offset: int) -> None:
    """See that an archive ends where it says: with a block of zeros, and nothing but zeros behind it.

    tarfile stops at a damaged header, and at an end in the middle, without a word.

    Raises:
        ReadError: there is more, or less.
    """
    file.seek(offset)
    block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("no end")
    while block:
        if block.strip(b"\0"):
            raise tarfile.ReadError("not the end")
        block = file.read(1 << 20)


def _zip_members(file: BinaryIO, total: int) -> Iterator[_Member]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            # Without the flag for UTF-8, zipfile takes names for code page 437; Linux writes what the file system has.
            name = info.filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437", "surrogateescape")
            if info.is_dir() and not info.file_size:
                continue
            file.seek(info.header_offset)
            head = file.read(_LOCAL)
            if info.flag_bits & 1 or stat.S_ISLNK(info.external_attr >> 16):
                yield _Member(name, refused=("unsupported", "the member is encrypted or a link"))
            elif info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                yield _Member(name, refused=("unsupported", "the member is packed by another method than deflate"))
            elif head[:4] != b"PK\x03\x04":
                yield _Member(name, refused=("corrupt", "the archive's list and its members do not agree"))
            else:
                skip = sum(struct.unpack_from("<HH", head, 26))
                offset = info.header_offset + _LOCAL + skip
                if offset + info.compress_size > total:
                    yield _Member(name, refused=("truncated", "the archive ends inside this member"))
                    continue
                packed = info.compress_size if info.compress_type == zipfile.ZIP_DEFLATED else 0
                yield _Member(name, info.file_size, offset, packed, info.CRC)
