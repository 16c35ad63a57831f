"""Which settings of a loop are worth trying, and what their measurements say. Pure."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Binds", "Measured", "Setting", "bottleneck", "grid", "knee", "refinements"]

Binds = Literal["trainer", "cpu", "storage", "transport", "alone"]

_FEW = 4
"""CPUs up to which twice as many workers may be better: they leave none idle while the trainer takes a batch."""
NEAR = 0.95
"""Of the best rate: a setting that reaches it with fewer workers is the better one."""
_BUSY = 0.85
"""Share of all CPUs from which on they are what binds."""
_STALLED = 0.05
"""Share of waiting up to which the training step is what binds."""
_DISK = 0.2
"""Share of the bytes read that came from the disk, from which on it is what binds."""


@dataclass(frozen=True)
class Setting:
    """What a loop is run with."""

    workers: int
    threads: int = 1
    prefetch: int = 2
    """Batches that each worker reads ahead; DataLoader's `prefetch_factor`."""
    start: str = "fork"
    """How workers are started: DataLoader's `multiprocessing_context`."""
    pin_memory: bool = False

    @property
    def words(self) -> str:
        """For people."""
        more = [f"{self.prefetch} batches ahead, {self.start}"] if self.workers else []
        more += ["pinned"] if self.pin_memory else []
        return ", ".join([f"{self.workers} workers", f"{self.threads} threads", *more])

    @property
    def cost(self) -> tuple[int, int, int, bool]:
        """What a setting takes: processes first; and whether it differs from the defaults in something else."""
        other = self.pin_memory or self.start != Setting.start
        return self.workers, self.workers * self.threads, self.workers * self.prefetch, other


@dataclass(frozen=True)
class Measured:
    """How a loop ran with a setting."""

    setting: Setting
    rates: tuple[float, ...]
    """Samples per second, of each repeat."""
    stalled: float
    """Share of its time that the loop waited for data."""
    busy: float
    """Share of all CPUs' time that its processes took."""
    from_disk: float
    """Bytes that came from the disk, of those that batches were made of."""
    first: float
    """Seconds to the first batch."""
    predicted: int
    """Bytes of memory, as `StreamDataset.memory` says."""
    peak: int
    """The same as measured, above what the process had before."""

    @property
    def rate(self) -> float:
        """Median over the repeats."""
        return statistics.median(self.rates)

    def to_json(self) -> dict[str, Any]:
        """One line of `--json`."""
        return asdict(self) | {"rate": self.rate}


def grid(cpus: int) -> list[Setting]:
    """Workers and decode threads that use up to all CPUs, and some processes more: the trainer often waits.

    >>> [(one.workers, one.threads) for one in grid(2)]
    [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (3, 1), (4, 1)]
    """
    more = {2 * cpus} if cpus <= _FEW else set()
    counts = sorted(
        {0, 1, cpus, cpus + 1, *more, *(1 << power for power in range(1, cpus.bit_length()) if 1 << power < cpus)}
    )
    return [
        Setting(workers, threads)
        for workers in counts
        for threads in (1, 2, 4)
        if threads == 1 or max(1, workers) * threads <= cpus
    ]


def refinements(best: Setting, starts: Sequence[str], *, pinned: bool) -> list[Setting]:
    """What else is worth trying around a setting with workers, one thing at a time."""
    if not best.workers:
        return []
    found = [Setting(best.workers, best.threads, prefetch) for prefetch in (1, 4)]
    found += [Setting(best.workers, best.threads, best.prefetch, start) for start in starts if start != best.start]
    return found + ([Setting(best.workers, best.threads, best.prefetch, pin_memory=True)] if pinned else [])


def knee(measured: Sequence[Measured]) -> Measured:
    """The one with the fewest workers, and then threads, that comes near to the best."""
    best = max(one.rate for one in measured)
    return min((one for one in measured if one.rate >= NEAR * best), key=lambda one: (one.setting.cost, -one.rate))


def bottleneck(chosen: Measured, *, step: float) -> Binds:
    """What a loop with a setting waits for.

    Args:
        chosen: the setting, as measured.
        step: seconds of a training step; 0 where there was none.
    """
    if step and chosen.stalled <= _STALLED:
        return "trainer"
    if chosen.from_disk >= _DISK and chosen.busy < _BUSY:
        return "storage"
    if chosen.busy >= _BUSY:
        return "cpu"
    return "transport" if chosen.setting.workers else "alone"
