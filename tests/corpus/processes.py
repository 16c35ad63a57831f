"""Commands as real processes: with limits, a deadline, and what they used."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import time
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["DEADLINE", "Done", "Running", "run", "start"]

DEADLINE = 120.0
"""Seconds after which a command counts as hanging."""
_LOOK_EVERY = 0.001
"""Seconds between two looks at what a running command has written."""


@dataclass(frozen=True)
class Done:
    """What a command did."""

    command: Sequence[str]
    code: int
    stdout: str
    stderr: str
    seconds: float
    rss_mb: float
    """The largest of its processes; what the test itself held when it started it counts too."""
    hung: bool

    def problems(self) -> list[str]:
        """What no command may do, whatever is wrong with its input."""
        found = []
        if self.hung:
            found.append(f"did not end within {DEADLINE:.0f} s")
        elif self.code < 0:
            found.append(f"was ended by {signal.Signals(-self.code).name}")
        if "Traceback (most recent call last)" in self.stdout + self.stderr:
            found.append("a traceback")
        if self.code > 0 and not self.stderr.strip():
            found.append(f"exit {self.code} without a message")
        return [f"{text}: {self}" for text in found]

    def __str__(self) -> str:
        return f"`{' '.join(self.command[1:])}` exit {self.code}: {self.stderr[-800:].strip()}"


@dataclass
class Running:
    """A started command."""

    command: Sequence[str]
    process: subprocess.Popen[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]
    began: float = field(default_factory=time.monotonic)

    def until(self, holds: Callable[[], bool], seconds: float = DEADLINE) -> bool:
        """Whether something came to hold while the command still ran."""
        while time.monotonic() - self.began < seconds:
            if holds():
                return not self._ended(0)
            if self._ended(_LOOK_EVERY):
                return False
        return False

    def send(self, number: signal.Signals) -> None:
        """Signal this one process, not those that it started."""
        self.process.send_signal(number)

    def wait(self, seconds: float = DEADLINE) -> Done:
        """Wait for its end, or end it and all that it started."""
        hung = not self._ended(max(0.0, self.began + seconds - time.monotonic()))
        if hung:
            os.killpg(self.process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.process.pid, 0)
        spent = time.monotonic() - self.began
        code = self.process.returncode = os.waitstatus_to_exitcode(status)
        out, err = _text(self.stdout), _text(self.stderr)
        return Done(self.command, code, out, err, spent, usage.ru_maxrss / 1024, hung)

    def _ended(self, seconds: float) -> bool:
        handle = os.pidfd_open(self.process.pid)
        try:
            return bool(select.select([handle], [], [], seconds)[0])
        finally:
            os.close(handle)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    text = file.read().decode(errors="replace")
    file.close()
    return text


def start(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, file_limit: int | None = None
) -> Running:
    """Start a command in a folder; `file_limit` is RLIMIT_FSIZE in bytes."""
    out, err = TemporaryFile(), TemporaryFile()  # noqa: SIM115 - closed when the command has ended
    process = subprocess.Popen(
        list(command),
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
        preexec_fn=None if file_limit is None else lambda: _limit_files(file_limit),
    )
    return Running(command, process, out, err)


def run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, file_limit: int | None = None
) -> Done:
    """Run a command to its end."""
    return start(command, folder, environment, file_limit).wait()


def _limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
