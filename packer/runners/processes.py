"""Worker processes of this machine, forked from a server that has imported the codecs and torch once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver, resource_tracker

__all__ = ["ProcessRunner"]


class ProcessRunner(ProcessPoolExecutor):
    """A process pool that leaves nothing behind: workers end with their parent, and at once when it is interrupted."""

    def __init__(self, workers: int) -> None:
        """Start up to `workers` processes as tasks come."""
        self.workers = workers
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["packer.unit", "packer.transforms.image"])
        # The server imports for seconds before it can ignore Ctrl-C, which reaches the whole group; the parent decides.
        resource_tracker.ensure_running()  # first, since it unblocks the signal again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        forkserver.ensure_running()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        super().__init__(workers, mp_context=context, initializer=_start_worker)

    def kill(self) -> None:
        """End the workers now, whatever they are doing, and wait until they have ended."""
        children = list(self._processes.values()) if self._processes else []
        for child in children:
            child.kill()
        self.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.join()


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
