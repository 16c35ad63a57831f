"""Who runs the tasks: each runner is a `concurrent.futures.Executor`, and only this folder knows which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packer.runners.processes import ProcessRunner
from packer.runners.serial import SerialRunner
from packer_reader.errors import UsageError

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["RUNNERS", "make_runner"]

RUNNERS = ("processes", "serial")


def make_runner(name: str, workers: int) -> Executor:
    """An executor for this many workers; one worker runs in this process."""
    if name not in RUNNERS:
        raise UsageError(f"--runner is {name!r}, it must be one of {', '.join(RUNNERS)}")
    return SerialRunner() if name == "serial" or workers == 1 else ProcessRunner(workers)
