"""One build at a time per target: an exclusively created file with host, process and heartbeat.

No flock, which Lustre and NFS may not have. A lock is stale when its process is gone from this host, or when its
heartbeat, the file's modification time, is old.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from packer_reader.errors import OutputError

__all__ = ["HEARTBEAT", "STALE", "Lock"]

HEARTBEAT = 10.0
"""Seconds between two signs of life."""
_WRITING = 2.0
"""Seconds that a lock may stay empty."""
STALE = 60.0
"""Seconds without one after which another host may take over."""


class Lock:
    """Held from `acquire` to `release`."""

    def __init__(self, path: Path, target: Path) -> None:
        """Prepare; `target` is what messages name."""
        self._path, self._target = path, target
        self._stop = threading.Event()
        self._beat: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            OutputError: another build holds it; the message names it.
        """
        for _ in range(10):
            try:
                file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                self._refuse_or_clear()
                continue
            with os.fdopen(file, "w") as out:
                json.dump(_me(), out)
            self._beat = threading.Thread(target=self._keep_alive, daemon=True)
            self._beat.start()
            return
        raise OutputError(f"cannot take the lock {str(self._path)!r}: remove it if no build is running")

    def release(self) -> None:
        """Give it back."""
        self.stop()
        if _read(self._path) == _me():
            self._path.unlink(missing_ok=True)

    def stop(self) -> None:
        """End the heartbeat; the file stays, for whoever removes the folder with it."""
        self._stop.set()
        if self._beat is not None:
            self._beat.join()

    def _keep_alive(self) -> None:
        while not self._stop.wait(HEARTBEAT):
            with contextlib.suppress(OSError):  # a network file system may fail once and recover
                os.utime(self._path)

    def _refuse_or_clear(self) -> None:
        holder = _read(self._path)
        if holder is None:
            return  # gone, or being written: look again
        if _alive(holder, self._path):
            raise OutputError(
                f"another build is writing {str(self._target)!r} (process {holder.get('pid', 'unknown')} on "
                f"{holder.get('host', 'an unknown host')}): wait for it, or choose another name"
            )
        self._clear(holder)

    def _clear(self, stale: dict[str, Any]) -> None:
        """Remove a stale lock, and no other: who moves it away first looks again at what it got."""
        moved = self._path.with_name(f"lock.{os.getpid()}")
        try:
            self._path.rename(moved)
            if _read(moved) != stale:
                os.link(moved, self._path)
        except FileNotFoundError:
            return
        finally:
            moved.unlink(missing_ok=True)


def _me() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": _start_of(os.getpid())}


def _read(path: Path) -> dict[str, Any] | None:
    for _ in range(20):
        try:
            holder = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            time.sleep(0.01)  # created, not yet written
            continue
        return holder if isinstance(holder, dict) else {}
    return {}


def _alive(holder: dict[str, Any], path: Path) -> bool:
    if not holder:
        return _age(path) < _WRITING  # its maker died, or has no room, between creating and writing it
    if holder.get("host") == socket.gethostname():
        pid = holder.get("pid")
        return isinstance(pid, int) and _start_of(pid) is not None and _start_of(pid) == holder.get("started")
    return _age(path) < STALE


def _age(path: Path) -> float:
    """Seconds since a file was changed; endless when it is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return math.inf


def _start_of(pid: int) -> int | None:
    """When a process of this host began, in clock ticks since boot; None if it is gone or a zombie."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in {"Z", "X"} else int(rest[18])
