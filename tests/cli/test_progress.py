"""Promises of progress: nothing for what is quick, a line now and then in a log, a bar on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from packer.cli.progress import Progress, Steps, counting

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "monotonic", found)
    return found


def test_a_log_of_a_long_job_stays_short(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(quiet=False)
    progress.begin("converting", 36_000)
    for _ in range(36_000):
        clock.now += 0.1
        progress.advance(1, 100_000, 0)
    lines = capsys.readouterr().err.splitlines()
    assert 100 < len(lines) < 130  # an hour, a line each half minute
    assert lines[0].startswith(
        "converting: 10 of 36,000 samples, 10 samples/s, 1.0 MB/s, 0 skipped, about 3,599 s left"
    )


def test_what_is_quick_says_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with counting("comparing", 10, quiet=False) as heard:
        for _ in range(10):
            clock.now += 0.05
            heard(1)
    assert capsys.readouterr().err == ""


def test_without_bytes_none_are_mentioned(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with counting("comparing", 10, quiet=False) as heard:
        clock.now += 5.0
        heard(5)
    assert capsys.readouterr().err == "comparing: 5 of 10 samples, 1 samples/s, about 5 s left\n"


def test_steps_say_how_long_it_will_take(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps(quiet=False)
    for name in "abc":
        steps.begin(name, 3)
        clock.now += 2.0
    Steps(quiet=True).begin("d", 1)
    err = capsys.readouterr().err
    assert err.splitlines() == ["a (1 of 3) ...", "b (2 of 3, about 4 s left) ...", "c (3 of 3, about 2 s left) ..."]


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "STORE", "--diff", "STORE"),
        ("inspect", "STORE", "--samples", "4", "-o", "OUT/s.png"),
        ("report", "STORE", "-o", "OUT/r.html"),
        ("verify", "STORE", "--full"),
        ("plan", "STORE"),
    ],
)
def test_a_terminal_sees_a_bar(arguments: tuple[str, ...], tar_store: Path, tmp_path: Path) -> None:
    words = [word.replace("STORE", str(tar_store)).replace("OUT", str(tmp_path)) for word in arguments]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))  # rows and columns
    command = [sys.executable, "-m", "packer", *words]
    shown = bytearray()

    def read() -> None:
        with suppress(OSError):  # which is how a terminal ends
            while piece := os.read(ours, 1 << 16):
                shown.extend(piece)

    reading = threading.Thread(target=read)
    reading.start()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, check=False, timeout=100)
    os.close(theirs)
    reading.join(100)
    os.close(ours)
    assert done.returncode == 0
    assert b"sample/s" in shown or b"value/s" in shown
    assert b"\x1b" not in done.stdout
