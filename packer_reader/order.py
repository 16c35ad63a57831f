"""Which samples, in which order: the epoch as arithmetic. Pure; order version 1.

Containers (shards, or an LMDB file) are cut into *blocks* of consecutive samples. A keyed permutation, computed and
never stored, orders the blocks anew for each (seed, epoch) and lays them on a ring that is turned by a random amount:
the *base order*. It is cut into *cells* of a quarter of the shuffle buffer; each cell is shuffled and dealt in four
parts to itself and the next three. What a cell was dealt, shuffled again, is an *output cell*, and output cells end
to end are the epoch. A reader therefore holds at most `window` samples, and any position can be computed without the
ones before it.

With several *lanes* the containers are dealt to equal ranges of samples, each lane runs by itself, and a global batch
takes the same number of positions from each.

Guarantees, for every store, window, block, lanes, ranks and workers: each sample once per epoch; a pure function of
(sizes, seed, epoch, window, block, lanes); a sample is equally likely at every position of its lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from packer_reader.permutation import key, scatter, shuffle

__all__ = ["ORDER_VERSION", "EpochOrder", "OrderSpec"]

Ints = npt.NDArray[np.int64]

ORDER_VERSION = 1
SPREAD = 4
"""Cells that one base cell is dealt to: constant of order version 1."""
_SLOT_GROUP = 256
"""Slots are looked up in aligned groups: one call of `scatter` on 256 costs what a call on one does."""
_BLOCK, _BASE_CELL, _OUTPUT_CELL, _LANES, _TURN = 1, 2, 3, 4, 5
"""First parts of the hash keys."""


@dataclass(frozen=True)
class OrderSpec:
    """What an order depends on, apart from the epoch."""

    sizes: Ints
    """Samples per container, int64 (containers,), in store order."""
    seed: int
    """0 to 2^64-1."""
    window: int
    """The shuffle buffer in samples, per lane; at least 1."""
    block: int
    """Consecutive samples that stay together in the base order; at least 1."""
    lanes: int = 1
    """Independent parts of the store, for many machines."""
    shuffled: bool = True
    """False gives the stored order."""
    near: int = 256
    """Samples of the stored order that are read ahead together; no part of the order."""

    @cached_property
    def total(self) -> int:
        """Samples in all."""
        return int(self.sizes.sum())

    def lane_size(self, lane: int) -> int:
        """Samples of one lane; lanes differ by one at most."""
        return -(-self.total * (lane + 1) // self.lanes) - -(-self.total * lane // self.lanes)

    @cached_property
    def _line(self) -> tuple[Ints, Ints]:
        """Containers in lane order: first sample id of each, and where each ends on the line."""
        first = np.cumsum(self.sizes) - self.sizes
        if self.lanes > 1 and self.shuffled:
            dealt = shuffle(len(self.sizes), key(_LANES, self.seed))
        else:
            dealt = np.arange(len(self.sizes))
        return first[dealt], np.cumsum(self.sizes[dealt])

    def pieces(self, lane: int) -> tuple[Ints, Ints]:
        """The runs of sample ids that one lane owns: (first ids, counts), without empty ones."""
        first, ends = self._line
        start = -(-self.total * lane // self.lanes)
        stop = start + self.lane_size(lane)
        starts = ends - np.diff(ends, prepend=0)
        low, high = np.maximum(starts, start), np.minimum(ends, stop)
        keep = high > low
        return (first + low - starts)[keep], (high - low)[keep]


class EpochOrder:
    """One lane of one epoch: output positions to sample ids.

    Memory: about 100 bytes per container while it is made, 48 afterwards, and 20 bytes per sample of the window.
    """

    def __init__(self, spec: OrderSpec, epoch: int, lane: int = 0) -> None:
        """Make ready to answer; `epoch` is 0 to 2^64-1."""
        self._first, self._counts = spec.pieces(lane)
        self._ends = np.cumsum(self._counts)
        self._shuffled = spec.shuffled
        self.size = int(self._counts.sum())
        if not (self.size and spec.shuffled):
            self._spread, self._cells = 1, max(1, -(-self.size // spec.near))
            self._cell, self._longer = divmod(self.size, self._cells)
            return
        self._keys = (spec.seed, epoch, lane)
        self._block = spec.block
        self._lay_blocks()
        self._lay_cells(spec.window)

    def _lay_blocks(self) -> None:
        k, counts = self._block, self._counts
        blocks = -(-counts // k)
        ends = np.cumsum(blocks)
        self._blocks, self._first_block = int(ends[-1]), ends - blocks
        self._block_key = key(_BLOCK, *self._keys)
        self._turn = key(_TURN, *self._keys) % self.size
        lack = k * blocks - counts
        short = lack > 0
        slots = scatter(ends[short] - 1, self._blocks, self._block_key, inverse=True)
        by_slot = np.argsort(slots, kind="stable")
        totals = np.cumsum(lack[short][by_slot])
        self._padding = np.concatenate([np.zeros(1, np.int64), totals])
        self._after_short = (slots[by_slot] + 1) * k - totals
        self._slot_groups: dict[int, Ints] = {}

    def _lay_cells(self, window: int) -> None:
        if window >= self.size:
            self._spread, self._cells = 1, 1
        else:
            self._spread = min(SPREAD, window)
            self._cells = -(-self.size // (window // self._spread))
        self._cell, self._longer = divmod(self.size, self._cells)
        self._base_cells: dict[int, Ints] = {}
        self._output_cell: tuple[int, Ints] = (-1, np.empty(0, np.int64))

    def ids(self, start: int, stop: int) -> Ints:
        """Sample ids at output positions `start..stop-1`, int64 (stop - start,).

        Positions must lie in `0..size`; ask for them in rising order to compute each cell once.
        """
        if not self._shuffled:
            place = np.arange(start, stop)
            piece = np.searchsorted(self._ends, place, "right")
            return np.asarray(self._first[piece] + place - (self._ends[piece] - self._counts[piece]))
        parts = []
        while start < stop:
            cell = self._cell_of(start)
            low = self._start(cell)
            end = min(stop, self._start(cell + 1))
            parts.append(self._output(cell)[start - low : end - low])
            start = end
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def arriving(self, start: int, stop: int, *, first: bool) -> list[Ints]:
        """What the output positions `start..stop-1` bring near, for reading ahead.

        Args:
            start: first position.
            stop: behind the last one.
            first: whether nothing has been read before; then all that is needed at once comes as well.

        Returns:
            Per base cell its sample ids, rising: long runs of neighbours, or what is still to come of a cell whose
            samples were dealt to earlier positions as well. Of the stored order all in one.
        """
        if start >= stop:
            return []
        cells = range(self._cell_of(start), self._cell_of(stop - 1) + 1)
        wanted = dict[int, int]()
        """The place in each base cell from which on it is needed."""
        if first:
            for j in range(self._spread - 1, 0, -1):
                wanted[(cells[0] - j) % self._cells] = self._cell * j // self._spread
            wanted |= {cells[0]: 0, (cells[0] + 1) % self._cells: 0}
        wanted |= {(cell + 1) % self._cells: 0 for cell in cells if self._start(cell) >= start}
        if not self._shuffled:
            parts = [self.ids(self._start(cell), self._start(cell + 1)) for cell in wanted]
            return [np.sort(np.concatenate(parts))] if parts else []
        return [np.sort(self._base_cell(cell)[place:]) for cell, place in wanted.items()]

    def _start(self, cell: int) -> int:
        return cell * self._cell + min(cell, self._longer)

    def _cell_of(self, position: int) -> int:
        long_part = self._longer * (self._cell + 1)
        if position < long_part:
            return position // (self._cell + 1)
        return self._longer + (position - long_part) // self._cell

    def _output(self, cell: int) -> Ints:
        if self._output_cell[0] == cell:
            return self._output_cell[1]
        c, spread = self._cell, self._spread
        needed = [(cell - j) % self._cells for j in range(spread - 1, -1, -1)]
        self._base_cells = {t: held for t, held in self._base_cells.items() if t in needed}
        parts = []
        for j, t in zip(range(spread - 1, -1, -1), needed, strict=True):
            parts.append(self._base_cell(t)[c * j // spread : c * (j + 1) // spread])
        parts.append(self._base_cell(cell)[c:])
        dealt = np.concatenate(parts)
        if spread > 1:
            dealt = dealt[shuffle(len(dealt), key(_OUTPUT_CELL, *self._keys, cell))]
        self._output_cell = (cell, dealt)
        return dealt

    def _base_cell(self, cell: int) -> Ints:
        held = self._base_cells.get(cell)
        if held is None:
            start, stop = self._start(cell), self._start(cell + 1)
            held = self._base(start, stop)[shuffle(stop - start, key(_BASE_CELL, *self._keys, cell))]
            self._base_cells[cell] = held
        return held

    def _base(self, start: int, stop: int) -> Ints:
        """Sample ids in the base order, at places `start..stop-1` of the turned ring."""
        first = (start + self._turn) % self.size
        last = first + stop - start
        if last <= self.size:
            return self._unturned(first, last)
        return np.concatenate([self._unturned(first, self.size), self._unturned(0, last - self.size)])

    def _unturned(self, start: int, stop: int) -> Ints:
        """Sample ids at places of the ring before it is turned: found block by block, not one by one."""
        first, last = self._padded(start), self._padded(stop - 1)
        blocks = self._blocks_at(first // self._block, last // self._block + 1)
        piece = np.searchsorted(self._first_block, blocks, "right") - 1
        before = (blocks - self._first_block[piece]) * self._block
        counts = np.minimum(self._counts[piece] - before, self._block)
        skipped = first % self._block
        before[0] += skipped
        counts[0] -= skipped
        ends = np.minimum(np.cumsum(counts), stop - start)
        counts = np.diff(ends, prepend=0)
        return np.asarray(np.arange(stop - start) + np.repeat(self._first[piece] + before - (ends - counts), counts))

    def _padded(self, place: int) -> int:
        """A place on the ring, were all blocks of one length."""
        return place + int(self._padding[np.searchsorted(self._after_short, place, "right")])

    def _blocks_at(self, start: int, stop: int) -> Ints:
        """The blocks in slots `start..stop-1`."""
        low, high = start // _SLOT_GROUP, (stop - 1) // _SLOT_GROUP + 1
        held = {group: self._slot_groups.get(group) for group in range(low, high)}
        self._slot_groups = {
            group: self._slot_group(group) if known is None else known for group, known in held.items()
        }
        table = np.concatenate(list(self._slot_groups.values()))
        return table[start - low * _SLOT_GROUP : stop - low * _SLOT_GROUP]

    def _slot_group(self, group: int) -> Ints:
        start, stop = group * _SLOT_GROUP, min((group + 1) * _SLOT_GROUP, self._blocks)
        return scatter(np.arange(start, stop), self._blocks, self._block_key)
