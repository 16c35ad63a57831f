"""Which epoch an iteration is, agreed on by every worker of it, without a lock between processes.

DataLoader copies a data set into its workers and tells nobody that an epoch begins: persistent workers never see
`set_epoch`, and the trainer never sees that a worker has started. So the epochs live in shared memory, in records. Each
worker writes only records of its own; the first of an iteration to come counts on, its siblings find its record.

Siblings have the same base seed, number of workers, and count of iterations in their process. That alone would not do,
because a program that seeds torch anew before each epoch gives each iteration the same base seed; but processes are
numbered by the trainer in the order in which it starts them, so siblings also have neighbouring numbers.

A clock belongs to the process that trains. A process that inherits one, such as a rank started by fork or spawn, begins
one of its own; only DataLoader workers share their trainer's.
"""

from __future__ import annotations

import multiprocessing
import os
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from packer_reader.locks import ThreadLock

__all__ = ["EpochClock", "Position"]

_SLOTS = 200
"""Processes that may have written lately; a trainer numbers the ones it starts.

The memory stays under 32 KiB: torch copies more with threads of OpenMP, and those hang in a forked process.
"""
_GENERATION, _SEED, _COUNT, _ITERATION, _NUMBER, _WORKER, _EPOCH, _START, _SERIAL = range(9)
"""Words of a record; the generation is written last and makes it valid."""
_WORDS = 9


@dataclass(frozen=True)
class Position:
    """Where an iteration begins."""

    epoch: int
    start: int = 0
    """Samples of the epoch consumed before."""


class EpochClock:
    """Counts epochs across processes; picklable into DataLoader workers under every start method."""

    _shared: torch.Tensor

    def __init__(self) -> None:
        """Begin before epoch 0."""
        self._reset(Position(0))
        _CLOCKS.add(self)

    def __getstate__(self) -> dict[str, Any]:
        self._own()
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._shared.is_shared():  # type: ignore[no-untyped-call]
            # A copy in the same process: it counts on by itself.
            self._shared = self._shared.clone().share_memory_()  # type: ignore[no-untyped-call]
        _CLOCKS.add(self)

    def _reset(self, position: Position) -> None:
        # Two records per process, written in turn, so that the newest one is never torn; then the position asked for.
        self._shared = torch.zeros(_SLOTS * 2 * _WORDS + 3, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._owner = self._counting = os.getpid()
        self._iterations = 0
        if position != Position(0):
            self.force(position)

    def _own(self) -> None:
        """Begin a clock of one's own in a process that trains and did not make this one."""
        if get_worker_info() is None and self._owner != os.getpid():
            self._reset(self.next())

    def force(self, position: Position) -> None:
        """Let the next iteration begin here; later ones count on from it."""
        self._own()
        words = self._words()
        words[-2:] = (position.epoch, position.start)
        words[-3] += 1

    def current(self) -> Position:
        """Where the newest iteration began, or where the next one will if one was asked for or there was none."""
        self._own()
        records, forced = self._snapshot()
        newest = records[records[:, _GENERATION].argmax()]
        if newest[_GENERATION] == 0 or forced[0] > records[:, _SERIAL].max():
            return self.next()
        return Position(int(newest[_EPOCH]), int(newest[_START]))

    def next(self) -> Position:
        """Where the next iteration will begin."""
        _, epoch, start, _ = _next(*self._snapshot())
        return Position(epoch, start)

    def begin(self) -> Position:
        """An iteration begins in this process: where. Those of several of its threads get epochs of their own."""
        with _COUNTING:
            return self._begin()

    def _begin(self) -> Position:
        self._own()
        info = get_worker_info()
        if self._counting != os.getpid():
            self._counting, self._iterations = os.getpid(), 0
        self._iterations += 1
        number = _number() if info is not None else 0
        worker, seed, count = (0, 0, 0) if info is None else (info.id, info.seed - info.id, info.num_workers)
        identity = (seed, count, self._iterations, number, worker)
        records, forced = self._snapshot()
        found = _sibling(records, identity)
        if found is None:
            candidate = _next(records, forced)
            found = _sibling(self._snapshot()[0], identity) or candidate
        slot = 2 * (number % _SLOTS)
        older = int(records[slot : slot + 2, _GENERATION].argmin())
        generation, epoch, start, serial = found
        self._write(slot + older, (generation, *identity, epoch, start, serial))
        return Position(epoch, start)

    def correct(self, position: Position) -> None:
        """The newest iteration of this process is another one than `begin` said: a loader has put its state back."""
        slot = 2 * ((_number() if get_worker_info() is not None else 0) % _SLOTS)
        records = self._words()[:-3].reshape(-1, _WORDS)
        newest = slot + int(records[slot : slot + 2, _GENERATION].argmax())
        record = records[newest].tolist()
        record[_EPOCH], record[_START] = position.epoch, position.start
        self._write(slot + (newest - slot + 1) % 2, tuple(record))
        records[newest, _GENERATION] = 0

    def _write(self, place: int, record: tuple[int, ...]) -> None:
        words = self._words()[place * _WORDS : (place + 1) * _WORDS]
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
                return copy[:-3].reshape(-1, _WORDS), copy[-3:].tolist()


_COUNTING = ThreadLock()
_CLOCKS: weakref.WeakSet[EpochClock] = weakref.WeakSet()


def _before_fork() -> None:
    """A rank that inherited a clock owns one before it starts workers of its own."""
    for clock in list(_CLOCKS):
        clock._own()


os.register_at_fork(before=_before_fork)


def _number() -> int:
    """Which process of its trainer this one is, counted from 1 in the order in which it started them."""
    identity: tuple[int, ...] = getattr(multiprocessing.current_process(), "_identity", ())
    return identity[-1] if identity else os.getpid()


def _sibling(records: npt.NDArray[np.int64], identity: tuple[int, ...]) -> tuple[int, int, int, int] | None:
    """Generation, epoch, start and serial of this iteration, if another worker of it has begun.

    Between two siblings the trainer starts the workers between them, and seldom anything else. Between workers of two
    iterations it starts the rest of the first and the beginning of the second. Numbers that could be either belong to
    another iteration only if this worker's own id has been seen in one.
    """
    seed, count, iteration, number, worker = identity
    if count == 0:
        return None
    alike = (records[:, _GENERATION] > 0) & (records[:, _NUMBER] != number)
    alike &= (records[:, _SEED : _ITERATION + 1] == (seed, count, iteration)).all(axis=1)
    candidates = records[alike]
    seen_before = bool((candidates[:, _WORKER] == worker).any())
    others = candidates[candidates[:, _WORKER] != worker]
    distance = np.abs(number - others[:, _NUMBER])
    apart = np.abs(worker - others[:, _WORKER])
    ordered = (number > others[:, _NUMBER]) == (worker > others[:, _WORKER])
    near = ordered & ((distance < count + apart) | (not seen_before))
    if not near.any():
        return None
    record = others[near][distance[near].argmin()].tolist()
    return record[_GENERATION], record[_EPOCH], record[_START], record[_SERIAL]


def _next(records: npt.NDArray[np.int64], forced: list[int]) -> tuple[int, int, int, int]:
    """Generation, epoch, start and serial of an iteration that nobody has begun yet."""
    newest = records[records[:, _GENERATION].argmax()]
    generation = int(newest[_GENERATION]) + 1
    if forced[0] > records[:, _SERIAL].max():
        return generation, forced[1], forced[2], forced[0]
    return generation, int(newest[_EPOCH]) + 1 if generation > 1 else 0, 0, forced[0]
