"""Locks of threads in processes that fork."""

from __future__ import annotations

import os
import signal
import threading

from packer_reader.locks import ThreadLock


def test_a_forked_child_has_its_locks_open() -> None:
    """Whoever held one is not there to let go of it."""
    lock, held, done = ThreadLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # what ends it where the lock stays closed
        with lock:
            os._exit(7)
    done.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
