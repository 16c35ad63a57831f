"""Progress on stderr: a bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Progress", "Steps", "counting"]

_LINE_EVERY = 30.0
"""Seconds between two lines where stderr is no terminal."""
_FIRST_LINE = 1.0
"""Seconds until the first of them: what takes no longer says nothing."""


class Progress:
    """Draws what a build reports; see `packer.drive.Watcher`."""

    def __init__(self, *, quiet: bool, unit: str = "sample") -> None:
        """Draw nothing when quiet, but for notices; `unit` is what is counted."""
        self._quiet, self._unit = quiet, unit
        self._bar: tqdm.tqdm | None = None  # type: ignore[name-defined]  # noqa: F821 - tqdm loads with the first bar
        self._what, self._total = "", 0
        self._done = self._bytes = self._skipped = 0
        self._started = time.monotonic()
        self._said = self._started - _LINE_EVERY + _FIRST_LINE

    def begin(self, what: str, total: int) -> None:
        """A step over `total` samples begins; 0 when that is not known."""
        self.close()
        self._what, self._total = what, total
        self._done = self._bytes = self._skipped = 0
        self._started = time.monotonic()
        if self._quiet:
            return
        if not sys.stderr.isatty():
            return
        from tqdm import tqdm

        self._bar = tqdm(
            total=total or None, desc=what, unit=self._unit, file=sys.stderr, dynamic_ncols=True, smoothing=0.05
        )

    def advance(self, samples: int, source_bytes: int, skipped: int) -> None:
        """Samples were converted or skipped."""
        self._done += samples
        self._bytes += source_bytes
        self._skipped += skipped
        now = time.monotonic()
        rate = self._bytes / max(1e-9, now - self._started) / 1e6
        if self._bar is not None:
            if self._bytes:
                self._bar.set_postfix_str(f"{rate:.1f} MB/s, {self._skipped} skipped", refresh=False)
            self._bar.update(samples)
        elif not self._quiet and now - self._said >= _LINE_EVERY:
            self._said = now
            if not self._total:
                click.echo(f"{self._what}: {self._done:,} files", err=True)
                return
            speed = self._done / (now - self._started)
            left = (self._total - self._done) / max(1e-9, speed)
            source = f" {rate:.1f} MB/s, {self._skipped} skipped," if self._bytes else ""
            done = f"{self._what}: {self._done:,} of {self._total:,} {self._unit}s"
            click.echo(f"{done}, {speed:,.0f} {self._unit}s/s,{source} about {left:,.0f} s left", err=True)

    def say(self, text: str) -> None:
        """A notice, also when quiet."""
        if self._bar is not None:
            self._bar.clear()
        click.echo(f"note: {text}", err=True)

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


@contextmanager
def counting(what: str, total: int, *, quiet: bool, unit: str = "sample") -> Iterator[Callable[[int], None]]:
    """Progress over so many samples, or another unit; what is yielded takes how many more are done."""
    progress = Progress(quiet=quiet, unit=unit)
    progress.begin(what, total)
    try:
        yield lambda samples: progress.advance(samples, 0, 0)
    finally:
        progress.close()


class Steps:
    """Says which of a few long steps begins, and about how long all will take."""

    def __init__(self, *, quiet: bool) -> None:
        """Say nothing when quiet."""
        self._quiet, self._done, self._started = quiet, 0, time.monotonic()

    def begin(self, what: str, total: int) -> None:
        """One of `total` steps begins."""
        if not self._quiet:
            spent = time.monotonic() - self._started
            left = f", about {spent / self._done * (total - self._done):,.0f} s left" if self._done else ""
            click.echo(f"{what} ({self._done + 1} of {total}{left}) ...", err=True)
        self._done += 1
