"""Worker processes of this machine, forked from a server that has imported the codecs and torch once.

A pool of our own rather than `ProcessPoolExecutor`, which fails every task when one process dies: here a death fails
the one task that the process had, with a `WorkerError` that names it, and another process takes its place.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections import deque
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from packer_reader.errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.context import ForkServerContext, ForkServerProcess

__all__ = ["ProcessRunner", "start_server"]

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Parameters of mallopt(3)."""
_PATIENCE = 1.0
"""Seconds that an interrupted build waits for its workers' end."""


@dataclass
class _Task:
    future: Future[Any]
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


@dataclass
class _Worker:
    process: ForkServerProcess
    line: Connection
    task: _Task | None = None


class ProcessRunner(Executor):
    """A pool that leaves nothing behind: workers end with their parent, and at once when it is interrupted.

    Example:
        >>> with ProcessRunner(2) as runner:
        ...     runner.submit(divmod, 7, 2).result()
        (3, 1)
    """

    def __init__(self, workers: int) -> None:
        """Begin to load the server; up to `workers` processes start as tasks come."""
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        start_server()
        self._size = workers
        self._waiting: deque[_Task] = deque()
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        self._ending: str | None = None
        """None, `finish` what was submitted, or `kill`."""
        self._bell, self._ring = multiprocessing.Pipe(duplex=False)
        # Processes are started and heard of in a thread: an interrupt in the main thread never tears that apart.
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand out a task.

        The future raises WorkerError when the process that ran it died.
        """
        task = _Task(Future(), (fn, args, kwargs))
        with self._lock:
            if self._ending:
                raise RuntimeError("the runner has been shut down")
            self._waiting.append(task)
        self._ring.send_bytes(b"!")
        return task.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Finish what was submitted, then end the processes."""
        if cancel_futures:
            with self._lock:
                for task in self._waiting:
                    task.future.cancel()
        self._end("finish")
        if wait:
            self._thread.join()

    def kill(self) -> None:
        """End the workers now, whatever they are doing, and wait until they have ended."""
        self._end("kill")
        for worker in list(self._workers):
            worker.process.kill()
        # The thread may still wait for the server to load; a worker that comes then has no task and ends with us.
        self._thread.join(_PATIENCE)

    def _end(self, how: str) -> None:
        with self._lock:
            if self._thread.is_alive():
                self._ending = how
                self._ring.send_bytes(b"!")

    def _serve(self) -> None:
        try:
            self._serve_tasks()
        except BaseException as error:
            self._ending = "kill"  # nothing more is taken
            for future in [*(t.future for t in self._waiting), *(w.task.future for w in self._workers if w.task)]:
                if not future.done():
                    future.set_exception(WorkerError(f"the pool of workers failed ({error!r}): please report this"))
            raise

    def _serve_tasks(self) -> None:
        while self._ending != "kill":
            self._hand_out()
            if self._ending and not self._waiting and not any(worker.task for worker in self._workers):
                break
            lines = {worker.line: worker for worker in self._workers}
            for ready in wait([self._bell, *lines]):
                if ready is self._bell:
                    self._bell.recv_bytes()
                else:
                    self._hear(lines[ready])  # type: ignore[index]
        for worker in self._workers:
            if self._ending == "kill":
                worker.process.kill()
            worker.line.close()
        for worker in self._workers:
            worker.process.join()

    def _hand_out(self) -> None:
        """Give waiting tasks to idle workers, and start workers while there are too few."""
        idle = deque(worker for worker in self._workers if worker.task is None)
        while self._waiting and self._ending != "kill" and (idle or len(self._workers) < self._size):
            with self._lock:
                task = self._waiting.popleft()
            if not task.future.set_running_or_notify_cancel():
                continue
            worker = None
            try:
                worker = idle.popleft() if idle else self._start()
                worker.task = task
                worker.line.send(task.call)
            except (EOFError, ConnectionError, BlockingIOError) as error:
                if worker is None:  # otherwise it has died, which is heard in a moment
                    task.future.set_exception(WorkerError(f"a worker process did not start ({error!r})"))
            except Exception as error:  # noqa: BLE001 - a task that cannot be sent, or no process to be had
                if worker is not None:
                    worker.task = None
                task.future.set_exception(error)

    def _start(self) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        process = self._context.Process(target=_work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))
        return self._workers[-1]

    def _hear(self, worker: _Worker) -> None:
        """Take a result, or note a death."""
        try:
            result, error = worker.line.recv()
        except (EOFError, OSError):
            self._workers.remove(worker)
            worker.line.close()
            worker.process.join()
            result, error = None, _died(worker.process)
        except Exception as unread:  # noqa: BLE001 - an error of others whose class cannot be made again here
            result, error = None, RuntimeError(f"a worker's answer cannot be read ({type(unread).__name__}: {unread})")
        task, worker.task = worker.task, None
        if task is None:
            return
        if error is None:
            task.future.set_result(result)
        else:
            task.future.set_exception(error)


def _died(process: ForkServerProcess) -> WorkerError:
    code = process.exitcode or 0
    try:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    except ValueError:
        how = f"was ended by signal {-code}"
    return WorkerError(f"worker process {process.pid} {how}", process.pid or -1)


def start_server() -> None:
    """Start the server that workers are forked from, unless it runs; it goes on loading when this returns.

    It is deaf to Ctrl-C, which reaches it too: the parent decides.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["packer.unit", "packer.transforms.image", "packer_reader.resize"]
    )
    with _uninterrupted():
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


def _work(line: Connection) -> None:
    """The life of a worker: tasks come in, results or errors go out, until the line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    import cv2  # noqa: PLC0415
    import torch  # noqa: PLC0415

    _keep_freed_memory()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    while True:
        try:
            fn, args, kwargs = line.recv()
        except (EOFError, OSError):
            return  # the driver has ended, perhaps in the middle of a task
        except Exception as error:  # noqa: BLE001 - a task that cannot be unpickled here
            try:
                line.send((None, error))
            except OSError:
                return
            continue
        answer: tuple[Any, BaseException | None]
        try:
            answer = fn(*args, **kwargs), None
        except Exception as error:  # noqa: BLE001 - an executor hands every failure to the future
            answer = None, error
        except BaseException as error:  # noqa: BLE001 - nothing but the driver may end the program
            answer = None, RuntimeError(f"{type(error).__name__}: {error}")
        try:
            line.send(answer)
        except BrokenPipeError:
            return
        except Exception as error:  # noqa: BLE001 - a result or an error that cannot be pickled
            line.send((None, RuntimeError(f"{type(error).__name__}: {error}")))


def _keep_freed_memory() -> None:
    """Let glibc's malloc keep what is freed: images come and go, and fresh pages cost 1 to 2 % of a conversion."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, 1 << 28)
        libc.mallopt(_TRIM_THRESHOLD, 1 << 29)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
