"""An epoch's order cut into batches, and shared out between ranks. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from packer_reader.order import EpochOrder, OrderSpec

__all__ = ["Batches", "Tail"]

Ints = npt.NDArray[np.int64]
Tail = Literal["keep", "drop", "pad"]


@dataclass
class Batches:
    """The batches of one epoch as one rank sees them.

    Global batch `g` is the same whatever the number of ranks and workers; rank r takes the r-th contiguous part of it.
    """

    spec: OrderSpec
    epoch: int
    global_batch: int
    """Samples of a global batch, over all ranks; a multiple of the lanes."""
    tail: Tail = "keep"
    """What becomes of a last batch that is not full: kept short, dropped, or padded with the lane's first samples."""
    start: int = 0
    """Samples of the epoch already consumed (with lanes: a multiple of them)."""
    rank: int = 0
    world_size: int = 1
    _lanes: dict[int, EpochOrder] = field(default_factory=dict, repr=False)
    _asked: bool = field(default=False, repr=False)
    """Whether `arriving` has said what is needed at once."""

    def __len__(self) -> int:
        """Batches left in the epoch: the same on every rank."""
        if self.start >= self.spec.total:
            return 0
        per_lane, first = self.global_batch // self.spec.lanes, self.start // self.spec.lanes
        if self.tail == "drop":
            return max(0, self.spec.total // self.spec.lanes - first) // per_lane
        left = max(0, -(-self.spec.total // self.spec.lanes) - first)
        return (left + per_lane - 1) // per_lane

    def last_size(self) -> int:
        """Samples of the last global batch under `keep`; 0 when there is none."""
        left = self.spec.total - self.start
        return (left - 1) % self.global_batch + 1 if left > 0 else 0

    def part(self, total: int) -> int:
        """How many of a global batch's `total` samples this rank gets."""
        return -(-total * (self.rank + 1) // self.world_size) - -(-total * self.rank // self.world_size)

    def batch(self, number: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Sample ids of this rank's part of global batch `number`, and which of them are not padding.

        Returns:
            int64 (n,) and bool (n,); n is `global_batch / world_size` but in an uneven or short batch.
        """
        spans = [self._span(lane, number) for lane in range(self.spec.lanes)]
        total = sum(stop - start for start, stop in spans)
        low = -(-total * self.rank // self.world_size)
        high = low + self.part(total)
        ids, valid = [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
        passed = 0
        for lane, (start, stop) in enumerate(spans):
            a, b = max(start, start + low - passed), min(stop, start + high - passed)
            passed += stop - start
            if a < b:
                part, real = self._positions(lane, a, b)
                ids.append(part)
                valid.append(real)
        return np.concatenate(ids), np.concatenate(valid)

    def several(self, number: int, count: int) -> list[tuple[Ints, npt.NDArray[np.bool_]]]:
        """Batches from one on, as `batch` gives them; where no rank and no lane takes its part, by one computation."""
        if self.spec.lanes > 1 or self.world_size > 1:
            return [self.batch(one) for one in range(number, number + count)]
        first, stop = self._span(0, number)[0], self._span(0, number + count - 1)[1]
        ids, valid = self._positions(0, first, stop)
        size = self.global_batch
        return [(ids[place : place + size], valid[place : place + size]) for place in range(0, stop - first, size)]

    def arriving(self, number: int, count: int = 1) -> list[Ints]:
        """What `count` global batches from one on bring near in this rank's lanes; see `EpochOrder.arriving`.

        The first ones that are asked about bring all that is needed at once.
        """
        first, self._asked = not self._asked, True
        found = list[Ints]()
        for lane, order in self._lanes.items():
            start, stop = self._span(lane, number)[0], self._span(lane, number + count - 1)[1]
            found += order.arriving(min(start, order.size), min(stop, order.size), first=first)
        return found

    def _span(self, lane: int, number: int) -> tuple[int, int]:
        per_lane = self.global_batch // self.spec.lanes
        start = self.start // self.spec.lanes + number * per_lane
        stop = start + per_lane
        if self.tail == "pad":
            return start, stop
        size = self.spec.lane_size(lane)
        return min(start, size), min(stop, size)

    def _positions(self, lane: int, start: int, stop: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
        order = self._lanes.get(lane)
        if order is None:
            order = self._lanes[lane] = EpochOrder(self.spec, self.epoch, lane)
        end = min(stop, max(start, order.size))
        parts = [order.ids(start, end)] if start < end else []
        place = max(start, end)
        while place < stop:
            low = place % order.size
            high = min(order.size, low + stop - place)
            parts.append(order.ids(low, high))
            place += high - low
        return parts[0] if len(parts) == 1 else np.concatenate(parts), np.arange(start, stop) < order.size
