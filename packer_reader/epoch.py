"""Which epoch an iteration is, agreed on by every worker of it, without a lock.

DataLoader copies a data set into its workers and tells nobody that an epoch begins: persistent workers never see
`set_epoch`, and the trainer never sees that a worker has started. So the epochs live in shared memory. Each worker
writes only records of its own; the first of an iteration to come counts on, its siblings find its record and follow
it.

A sibling's record is one of a living process with the same base seed and number of workers that is newer than anything
this worker has begun. Base seeds alone would not do: a program that seeds torch anew before each epoch gives each
iteration the same one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

__all__ = ["EpochClock", "Position"]

_WORKERS = 1024
_GENERATION, _SEED, _COUNT, _PROCESS, _EPOCH, _START, _SERIAL = range(7)
"""Words of a record; the generation is written last and makes it valid."""


@dataclass(frozen=True)
class Position:
    """Where an iteration begins."""

    epoch: int
    start: int = 0
    """Samples of the epoch consumed before."""


class EpochClock:
    """Counts epochs across processes; picklable into DataLoader workers under every start method."""

    def __init__(self) -> None:
        """Begin before epoch 0."""
        # Two records per worker, written in turn, so that the newest one is never torn; then the position asked for.
        self._shared = torch.zeros((_WORKERS + 1) * 2 * 7 + 3, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def force(self, position: Position) -> None:
        """Let the next iteration begin here; later ones count on from it."""
        words = self._words()
        words[-2:] = (position.epoch, position.start)
        words[-3] += 1

    def current(self) -> Position:
        """Where the newest iteration began, or where the next one will if there was none."""
        records, forced = self._snapshot()
        newest = records[records[:, _GENERATION].argmax()]
        if newest[_GENERATION] == 0 or forced[0] > records[:, _SERIAL].max():
            return Position(int(forced[1]), int(forced[2]))
        return Position(int(newest[_EPOCH]), int(newest[_START]))

    def begin(self) -> Position:
        """An iteration begins in this process: where."""
        info = get_worker_info()
        seed, count, slot = (
            (0, 0, 0) if info is None else (info.seed - info.id, info.num_workers, 1 + info.id % _WORKERS)
        )
        records, forced = self._snapshot()
        mine = records[2 * slot : 2 * slot + 2]
        after = int(mine[:, _GENERATION].max())
        found = self._sibling(records, seed, count, after)
        if found is None:
            candidate = _next(records, forced)
            found = self._sibling(self._snapshot()[0], seed, count, after) or candidate
        generation, epoch, start, serial = found
        record = (generation, seed, count, os.getpid(), epoch, start, serial)
        self._write(2 * slot + int(mine[:, _GENERATION].argmin()), record)
        return Position(epoch, start)

    def _sibling(
        self, records: npt.NDArray[np.int64], seed: int, count: int, after: int
    ) -> tuple[int, int, int, int] | None:
        """Generation, epoch, start and serial of this iteration, if another worker of it has begun."""
        if count == 0:
            return None
        same = (records[:, _SEED] == seed) & (records[:, _COUNT] == count) & (records[:, _GENERATION] > after)
        for record in sorted(records[same].tolist()):
            if _alive(record[_PROCESS]):
                return record[_GENERATION], record[_EPOCH], record[_START], record[_SERIAL]
        return None

    def _write(self, place: int, record: tuple[int, ...]) -> None:
        words = self._words()[place * 7 : place * 7 + 7]
        words[_GENERATION] = 0
        words[1:] = record[1:]
        words[_GENERATION] = record[0]

    def _words(self) -> npt.NDArray[np.int64]:
        words: Any = self._shared.numpy()
        return words  # type: ignore[no-any-return]

    def _snapshot(self) -> tuple[npt.NDArray[np.int64], list[int]]:
        """All records and what is forced, read twice until nothing changes in between."""
        words = self._words()
        while True:
            copy = words.copy()
            if np.array_equal(copy, words):
                return copy[:-3].reshape(-1, 7), copy[-3:].tolist()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _next(records: npt.NDArray[np.int64], forced: list[int]) -> tuple[int, int, int, int]:
    """Generation, epoch, start and serial of an iteration that nobody has begun yet."""
    newest = records[records[:, _GENERATION].argmax()]
    generation = int(newest[_GENERATION]) + 1
    if forced[0] > records[:, _SERIAL].max():
        return generation, forced[1], forced[2], forced[0]
    return generation, int(newest[_EPOCH]) + 1 if generation > 1 else 0, 0, forced[0]
