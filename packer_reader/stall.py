"""How much of its time a training loop waits for data, and what to do about it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from packer_reader.machine import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["StallMeter"]

_LITTLE = 0.05
"""Share of waiting that is not worth a change."""


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


class StallMeter:
    """A loader that measures the loop around it: any loader, looked at from outside.

    From one batch to the next a loop computes, then waits. What it computes counts as long as Python does: a loop on a
    GPU that never waits for it (`loss.item()`, a print) runs ahead of it, and seems to wait for data while the GPU is
    busy. The first batch of each epoch, which waits for workers to start, is counted apart.

    Args:
        batches: a loader, or anything that can be iterated again and again.
        say: called with a line at the end of each epoch; the standard error output when left out.
        clock: of seconds.

    Example:
        meter = StallMeter(loader(ds, num_workers=4))
        for batch in meter:
            train(batch)
        meter.share  # of the newest epoch, 0 to 1
    """

    def __init__(
        self,
        batches: Iterable[Any],
        say: Callable[[str], None] = _to_stderr,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.batches, self._say, self._clock = batches, say, clock
        self.first = 0.0
        """Seconds to the first batch of the newest epoch."""
        self.waited = 0.0
        """Seconds that the loop waited for all later ones."""
        self.computed = 0.0
        """Seconds that the loop took itself."""
        self.steps = 0
        """Batches of the newest epoch."""

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "batches":  # not there yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.batches, name)

    def __iter__(self) -> Iterator[Any]:
        clock, batches = self._clock, iter(self.batches)
        self.first = self.waited = self.computed = 0.0
        self.steps = 0
        asked = clock()
        for batch in batches:
            came = clock()
            if self.steps:
                self.waited += came - asked
            else:
                self.first = came - asked
            self.steps += 1
            yield batch
            asked = clock()
            self.computed += asked - came
        if self.steps:
            self._say(self.advice())

    @property
    def share(self) -> float:
        """Of the loop's time, without the first batch, what it waited: 0 to 1."""
        return self.waited / max(self.waited + self.computed, 1e-9)

    def advice(self) -> str:
        """What was measured in the newest epoch, and what to do."""
        step = (self.waited + self.computed) / max(1, self.steps)
        found = (
            f"the loop waited for data {self.share:.0%} of its time ({self.steps} steps of {1000 * step:.1f} ms, the "
            f"first batch after {self.first:.1f} s)"
        )
        return f"{found}: {self._what_to_do()}"

    def _what_to_do(self) -> str:
        workers = getattr(self.batches, "num_workers", None)
        cpus = usable_cpus()
        if self.share < _LITTLE:
            return "training is the limit, reading keeps up"
        if workers == 0:
            return f"read beside the training, with num_workers of 1 to {cpus}"
        if workers is not None and workers < cpus:
            return f"take more than {workers} workers: there are {cpus} CPUs"
        return (
            "all CPUs read already: store smaller images (--resize), or decode less (crops with --roi, raw images, "
            'cache="decoded")'
        )
