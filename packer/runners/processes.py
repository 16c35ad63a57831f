"""Worker processes of this machine, forked from a server that has imported the codecs and torch once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

__all__ = ["ProcessRunner"]


class ProcessRunner(ProcessPoolExecutor):
    """A process pool that leaves nothing behind: workers end with their parent, and at once when it is interrupted."""

    def __init__(self, workers: int) -> None:
        """Start up to `workers` processes as tasks come."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["packer.unit", "packer.transforms.image"])
        with _uninterrupted():
            _start_server()
        super().__init__(workers, mp_context=context, initializer=_start_worker)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand out a task; an interrupt waits until the worker that it may start is known, and so can be ended."""
        with _uninterrupted():
            return super().submit(fn, *args, **kwargs)

    def kill(self) -> None:
        """End the workers now, whatever they are doing, and wait until they have ended."""
        children = list(self._processes.values()) if self._processes else []
        for child in children:
            child.kill()
        self.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.join()


def _start_server() -> None:
    """Start the server that workers are forked from, deaf to Ctrl-C, which reaches it too: the parent decides."""
    resource_tracker.ensure_running()  # first, since it unblocks the signal again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until this is over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    before: dict[int, Any] = {}
    try:
        for number in map(int, (signal.SIGINT, signal.SIGTERM)):
            handler = signal.getsignal(number)
            if handler is not None:  # None: set by something other than Python, which could not be put back
                before[number] = handler
                signal.signal(number, lambda seen, _: pending.append(seen))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if pending:
            signal.raise_signal(pending[0])


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    import cv2  # noqa: PLC0415
    import torch  # noqa: PLC0415

    cv2.setNumThreads(1)
    torch.set_num_threads(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
