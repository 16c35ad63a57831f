"""A loop over batches, timed from inside its stream: warm-up, repeats, and an end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from packer.measure.counters import Memory, Used, used
from packer_reader.machine import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

__all__ = ["Finished", "Meter"]

_FEW = 4
"""Batches of an epoch under which all of them count: the first ones would be too many to leave out."""


class Finished(SystemExit):
    """All repeats are done. A program that does not expect it ends, as one that has done its work."""


class Meter:
    """Measures whatever loop runs over its batches, until it has seen enough.

    Args:
        seconds: of each repeat.
        repeats: how many.
        size: samples of a batch.
        ahead: batches that workers may have read before the first was taken: so many are not counted, nor what comes in
            the first half of a repeat's time, nor the first of each epoch that has a few. None counts everything.
        disk: a file on the disk whose reads are counted.
    """

    def __init__(
        self,
        seconds: float,
        repeats: int,
        size: Callable[[Any], int],
        *,
        ahead: int | None = 0,
        disk: Path | None = None,
    ) -> None:
        self._seconds, self._repeats, self._size, self._ahead, self._disk = seconds, repeats, size, ahead, disk
        self._memory, self._clock, self._warm, self.first = Memory(), time.perf_counter, 0, 0.0
        if ahead is not None:  # looking at the memory holds up page faults, which a cold pass is made of
            self._memory.begin()
        self._created = self._clock()
        self._begun: tuple[float, Used] | None = None if ahead is not None else (self._created, used(disk))
        self._rates, self._waited, self._looped, self._samples = list[float](), 0.0, 0.0, 0
        self._count, self._spent = 0, 0.0
        self._batches = _FEW
        """Of the epoch before."""
        self._ended: tuple[float, Used] | None = None

    def epoch(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches of an epoch, measured.

        Raises:
            Finished: when the loop asks for one more than is needed.
        """
        asked, number, before = self._clock(), -1, self._batches
        for number, batch in enumerate(batches):
            came = self._clock()
            self.first = self.first or came - self._created
            yield batch
            left = self._clock()
            if self._begun is None:
                self._warm_up(left)
            else:
                self._one(self._size(batch), came - asked, left - asked, turned=number == 0 and before >= _FEW)
            del batch
            asked = self._clock()
        self._batches = number + 1

    def _warm_up(self, now: float) -> None:
        self._warm += 1
        spent = now - self._created - self.first
        if (self._warm > (self._ahead or 0) and spent >= self._seconds / 2) or spent > 2 * self._seconds:
            self._begun = now, used(self._disk)

    def _one(self, size: int, waited: float, whole: float, *, turned: bool) -> None:
        self._samples += size
        if turned and self._ahead is not None:
            return
        self._count, self._spent, self._waited = self._count + size, self._spent + whole, self._waited + waited
        if self._spent >= self._seconds:
            self._close()
            if len(self._rates) >= self._repeats:
                self._end()  # now, while the workers are there
                raise Finished(0)

    def _end(self) -> None:
        self._ended = self._ended or (self._clock(), used(self._disk))
        self._memory.end()

    def _close(self) -> None:
        self._rates.append(self._count / self._spent)
        self._looped += self._spent
        self._count, self._spent = 0, 0.0

    def found(self, sample_bytes: float) -> dict[str, Any]:
        """What was measured: rates, `stalled` and so on as in `Measured`, and what the disk did meanwhile.

        Args:
            sample_bytes: mean stored size, which tells how much of what was read came from the disk.
        """
        if self._count and not self._rates:
            self._close()
        self._end()
        assert self._ended is not None
        now, after = self._ended
        begun, before = self._begun or (now, after)
        counts, wall = after - before, max(now - begun, 1e-9)
        return {
            "rates": self._rates,
            "stalled": self._waited / max(self._looped, 1e-9),
            "busy": min(1.0, counts.cpu / wall / usable_cpus()),
            "from_disk": min(1.0, counts.read / max(1.0, self._samples * sample_bytes)),
            "first": self.first,
            "peak": self._memory.peak,
            "samples": self._samples,
            "seconds": wall,
            "faults": counts.faults,
            "requests": counts.requests,
            "requested": counts.requested,
        }
