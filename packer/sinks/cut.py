"""Where shards begin and end. Pure: greedy, in order, between samples, from exact sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Cutter", "Run", "ShardPlan"]


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive samples of one unit."""

    unit: int
    first: int
    """First row of the unit."""
    stop: int
    """One behind the last row."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """What one shard is made of, in order."""

    number: int
    runs: tuple[Run, ...]

    @property
    def samples(self) -> int:
        """Samples of the shard."""
        return sum(run.stop - run.first for run in self.runs)


@dataclass
class Cutter:
    """Fills shards one after the other.

    Each is full to within one sample, and none is over the capacity unless a single sample is.
    """

    capacity: int
    """What a shard may hold, in the unit of the lengths."""
    oversized: int = 0
    """Samples that were larger than the capacity and got a shard of their own."""
    _number: int = 0
    _used: int = 0
    _runs: list[Run] = field(default_factory=list)

    def feed(self, unit: int, lengths: npt.NDArray[Any]) -> list[ShardPlan]:
        """Take the next unit's samples; returns the shards that are now complete.

        Of a block of samples the first has the length of all and the others have none, so that none is cut off it.
        """
        ends = np.cumsum(lengths.astype(np.int64))
        done, first, before = [], 0, 0
        while first < len(ends):
            stop = int(np.searchsorted(ends, before + self.capacity - self._used, "right"))
            if stop > first:
                self._runs.append(Run(unit, first, stop))
                self._used += int(ends[stop - 1]) - before
                first, before = stop, int(ends[stop - 1])
            elif not self._runs:
                self.oversized += 1
                stop = int(np.searchsorted(ends, ends[first], "right"))  # with samples that have no length of their own
                self._runs.append(Run(unit, first, stop))
                first, before = stop, int(ends[first])
                self._used = self.capacity
            if first < len(ends):
                done += self.close()
        return done

    def close(self) -> list[ShardPlan]:
        """End the open shard, if it holds anything."""
        if not self._runs:
            return []
        plan = ShardPlan(self._number, tuple(self._runs))
        self._number, self._used, self._runs = self._number + 1, 0, []
        return [plan]
