"""Which sample a worker is at: noted as it goes, read by the driver when the worker has died."""

from __future__ import annotations

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
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self

    def note(self, key: int) -> None:
        """Say that a sample comes next."""
        os.pwrite(self._file, _NOTE.pack(self._unit, key), 0)

    def __exit__(self, *_: object) -> None:
        os.pwrite(self._file, _NOTE.pack(-1, -1), 0)
        os.close(self._file)


def last_seen(folder: Path, process: int) -> tuple[int, int] | None:
    """The unit and key that a process was at; None if it was at none. The note is taken away."""
    path = _path(folder, process)
    try:
        data = path.read_bytes()
        path.unlink()
    except OSError:
        return None
    unit, key = _NOTE.unpack(data) if len(data) == _NOTE.size else (-1, -1)
    return (unit, key) if unit >= 0 else None


def was_cut_off(folder: Path) -> bool:
    """Whether a process that wrote notes in a folder ended in the middle of a sample."""
    for path in folder.glob("at-*"):
        data = path.read_bytes()
        if len(data) == _NOTE.size and _NOTE.unpack(data)[0] >= 0:
            return True
    return False


def _path(folder: Path, process: int) -> Path:
    return folder / f"at-{process}"
