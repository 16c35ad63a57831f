"""Which sample a worker is at: noted as it goes, read by the driver when the worker has died."""

from __future__ import annotations

import mmap
import os
import struct
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Whereabouts", "last_seen", "was_cut_off"]

_NOTE = struct.Struct("<qq")


class Whereabouts:
    """The note of this process; a context manager. The file stays, so that a unit costs no file of its own."""

    def __init__(self, folder: Path, unit: int) -> None:
        """Take the folder of the notes and the unit that is converted."""
        self._path, self._unit = _path(folder, os.getpid()), unit

    def __enter__(self) -> Self:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(file, _NOTE.pack(-1, -1), 0)  # on a full disk this fails, where a mapped hole would kill
            self._note = mmap.mmap(file, _NOTE.size)  # what is stored here outlives the process, without a call
        finally:
            os.close(file)
        return self

    def note(self, key: int | None) -> None:
        """Say that a sample comes next; None: that no sample is at fault for what comes next."""
        _NOTE.pack_into(self._note, 0, self._unit, -1 if key is None else key)

    def __exit__(self, *_: object) -> None:
        _NOTE.pack_into(self._note, 0, -1, -1)
        self._note.close()


def last_seen(folder: Path, process: int) -> tuple[int, int | None] | None:
    """The unit and key that a process was at; None if it was at none. The note is taken away."""
    path = _path(folder, process)
    try:
        data = path.read_bytes()
        path.unlink()
    except OSError:
        return None
    unit, key = _NOTE.unpack(data) if len(data) == _NOTE.size else (-1, -1)
    return (unit, key if key >= 0 else None) if unit >= 0 else None


def was_cut_off(folder: Path) -> bool:
    """Whether a process that wrote notes in a folder ended in the middle of a sample."""
    for path in folder.glob("at-*"):
        data = path.read_bytes()
        if len(data) == _NOTE.size and _NOTE.unpack(data)[0] >= 0:
            return True
    return False


def _path(folder: Path, process: int) -> Path:
    return folder / f"at-{process}"
