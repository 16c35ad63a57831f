"""Locks between the threads of one process that forks.

No thread but the forking one is left in the child, so a lock that another one held would stay closed there for good.
"""

from __future__ import annotations

import os
import threading

__all__ = ["ThreadLock"]


class ThreadLock:
    """A lock that its holder may take again (a finalizer may run while it is held), open anew in a forked child.

    For modules: each one is remembered for as long as the process lives.
    """

    def __init__(self) -> None:
        """Begin open."""
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def acquire(self) -> None:
        """Wait until no other thread holds it."""
        self._lock.acquire()

    def release(self) -> None:
        """Let another thread have it."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
