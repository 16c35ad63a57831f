"""The loop that keeps workers busy: units out of order, shards in order, a line in the journal for each.

The driver moves no data of tar stores: it sends unit numbers out, cuts shards from the sizes that come back, and sends
shards out to be assembled by the same workers.
"""

from __future__ import annotations

import zlib
from collections import deque
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from packer.unit import SplitJob, UnitDone, convert_unit
from packer_reader.errors import SampleError, WorkerError

if TYPE_CHECKING:
    from pathlib import Path

    from packer.output.journal import Journal, ShardDone
    from packer.sinks.base import Sink
    from packer.sinks.cut import ShardPlan

__all__ = ["Drive", "Watcher"]


class Watcher(Protocol):
    """Hears of progress; the command line draws it."""

    def begin(self, what: str, total: int) -> None:
        """A step over `total` samples begins."""

    def advance(self, samples: int, source_bytes: int, skipped: int) -> None:
        """Samples were converted or skipped."""

    def say(self, text: str) -> None:
        """A sentence that a user should see."""


@dataclass
class Drive:
    """One split's conversion."""

    job: SplitJob
    sink: Sink
    journal: Journal
    executor: Executor
    watcher: Watcher
    workers: int = 1
    """Tasks that the executor runs at a time."""
    stop_on_error: bool = False
    """Raise at the first sample that cannot be converted."""
    _flying: set[Future[Any]] = field(default_factory=set)
    _todo: deque[int] = field(default_factory=deque)
    """Units not handed out yet, rising."""
    _left: dict[int, int] = field(default_factory=dict)
    """Samples of a unit that lie in no finished shard yet."""
    _plans: dict[int, ShardPlan] = field(default_factory=dict)
    """Shards being assembled, by number."""

    def run(self) -> list[ShardDone]:
        """Convert what is not done yet; returns the shards in order.

        Raises:
            WorkerError: a worker process died.
            SampleError: with `stop_on_error`, the first bad sample.
            OSError: the disk is full, or a file could not be written.
        """
        try:
            return self._run()
        except BrokenExecutor:
            raise WorkerError(
                "a worker process died (out of memory, or a crash in a codec): free memory or lower --workers, and run "
                "the same command again to go on"
            ) from None

    def _run(self) -> list[ShardDone]:
        self._find_todo()
        for unit in range(self.job.plan.units):
            while unit not in self.journal.units:
                self._submit(unit)
                self._collect()
            self._take(unit)
        for plan in self.sink.close():
            self._assemble(plan)
        while self._flying:
            self._collect()
        return [self.journal.shards[number] for number in sorted(self.journal.shards)]

    def _find_todo(self) -> None:
        """Units that were never done, and those whose files are gone or damaged."""
        journal = self.journal
        for unit, done in list(journal.units.items()):
            if not _as_noted(self.job.rows_path(unit), done.rows):
                del journal.units[unit]
        settled = self.sink.settled(journal)
        for unit, done in list(journal.units.items()):
            self._check(done)
            if unit in settled or _as_noted(self.job.data_path(unit), done.data):
                self.watcher.advance(done.written + done.skipped, done.source_bytes, done.skipped)
            else:
                del journal.units[unit]
        self._todo.extend(unit for unit in range(self.job.plan.units) if unit not in journal.units)

    def _submit(self, current: int) -> None:
        """Keep the workers busy, but not so far ahead of the unit waited for that fragments pile up."""
        window = 1 if self.workers == 1 else 3 * self.workers
        while self._todo and len(self._flying) < window and self._todo[0] < current + 16 * window:
            self._flying.add(self.executor.submit(convert_unit, self.job, self._todo.popleft()))

    def _collect(self) -> None:
        finished, self._flying = wait(self._flying, return_when=FIRST_COMPLETED)
        for future in finished:
            done: UnitDone | ShardDone = future.result()
            self.journal.add(done)
            if isinstance(done, UnitDone):
                self._unit_done(done)
            else:
                self._release(self._plans.pop(done.number))

    def _unit_done(self, done: UnitDone) -> None:
        self.watcher.advance(done.written + done.skipped, done.source_bytes, done.skipped)
        self._check(done)

    def _check(self, done: UnitDone) -> None:
        if done.problem and self.stop_on_error:
            way_out = "repair or remove it and give --no-resume, or leave out --on-error stop to skip it"
            raise SampleError("stopped", f"{done.problem}: {way_out}")

    def _take(self, unit: int) -> None:
        done = self.journal.units[unit]
        self._left[unit] = done.written
        for plan in self.sink.take(done):
            self._assemble(plan)
        if self.sink.moves_data or not done.written:
            self._forget(unit)

    def _assemble(self, plan: ShardPlan) -> None:
        if plan.number in self.journal.shards:
            self._release(plan)
            return
        self._plans[plan.number] = plan
        self._flying.add(self.executor.submit(self.sink.assemble(), self.job, plan))

    def _release(self, plan: ShardPlan) -> None:
        """A shard is finished: fragments that lie in finished shards as a whole can go."""
        if self.sink.moves_data:
            return
        for run in plan.runs:
            self._left[run.unit] -= run.stop - run.first
            if self._left[run.unit] == 0:
                del self._left[run.unit]
                self._forget(run.unit)

    def _forget(self, unit: int) -> None:
        """Delete a fragment that is no longer needed."""
        self.job.data_path(unit).unlink(missing_ok=True)


def _as_noted(path: Path, noted: tuple[int, int]) -> bool:
    """Whether a file has the size and CRC-32 that the journal gives."""
    try:
        with path.open("rb") as file:
            crc = 0
            while chunk := file.read(1 << 22):
                crc = zlib.crc32(chunk, crc)
            return (file.tell(), crc) == noted
    except OSError:
        return False
