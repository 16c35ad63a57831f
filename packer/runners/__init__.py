"""Who runs the tasks: each runner is a `concurrent.futures.Executor`, and only this folder knows which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packer.runners.processes import ProcessRunner, start_server
from packer.runners.serial import SerialRunner

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["RUNNERS", "SerialRunner", "make_runner", "stop_runner", "warm_up"]

RUNNERS = ("processes", "serial")


def make_runner(name: str, workers: int) -> Executor:
    """An executor out of `RUNNERS`, for this many workers."""
    return SerialRunner() if name == "serial" else ProcessRunner(workers)


def stop_runner(runner: Executor) -> None:
    """End whatever it runs, now: after a failure no worker may write on."""
    if isinstance(runner, ProcessRunner):
        runner.kill()
    else:
        runner.shutdown()


def warm_up(name: str) -> None:
    """Let the workers' libraries load; `make_runner` will be called in a moment."""
    if name == "processes":
        start_server()
