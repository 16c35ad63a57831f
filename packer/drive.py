"""The loop that keeps workers busy: units out of order, shards in order, a line in the journal for each.

The driver moves no data of tar stores: it sends unit numbers out, cuts shards from the sizes that come back, and sends
shards out to be assembled by the same workers. A worker that dies costs the unit it was at, which is done again; the
sample that ends two workers is skipped.
"""

from __future__ import annotations

from collections import defaultdict, deque
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from packer.checksum import file_noted
from packer.whereabouts import last_seen
from packer.work import convert
from packer_reader.errors import SampleError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from packer.output.journal import Journal, ShardDone
    from packer.sinks.base import Sink
    from packer.sinks.cut import ShardPlan
    from packer.unit import SplitJob, UnitDone

__all__ = ["Drive", "Lane", "Watcher"]

_DEATHS = 4
"""Workers that may die at one unit without a sample that two of them were at."""


class Watcher(Protocol):
    """Hears of progress; the command line draws it."""

    def begin(self, what: str, total: int) -> None:
        """A step over `total` samples begins."""

    def advance(self, samples: int, source_bytes: int, skipped: int) -> None:
        """Samples were converted or skipped."""

    def say(self, text: str) -> None:
        """A sentence that a user should see."""


@dataclass(eq=False)
class Lane:
    """One store that grows: a split at one size."""

    job: SplitJob
    sink: Sink
    journal: Journal
    left: dict[int, int] = field(default_factory=dict)
    """Samples of a unit that lie in no finished shard yet."""

    def forget_damaged(self) -> None:
        """Drop units that were never done, and those whose files are gone or damaged, from the journal."""
        units = self.journal.units
        for unit, done in list(units.items()):
            if file_noted(self.job.rows_path(unit)) != done.rows:
                del units[unit]
        settled = self.sink.settled(self.journal)  # they need no fragment any more
        for unit, done in list(units.items()):
            if unit not in settled and file_noted(self.job.data_path(unit)) != done.data:
                del units[unit]

    def take(self, unit: int) -> list[ShardPlan]:
        """Take the next unit in order; returns shards that can be assembled now."""
        done = self.journal.units[unit]
        self.left[unit] = done.samples
        plans = self.sink.take(done)
        if self.sink.moves_data or not done.samples:
            self._forget(unit)
        return plans

    def release(self, plan: ShardPlan) -> None:
        """A shard is finished: fragments that lie in finished shards as a whole can go."""
        if self.sink.moves_data:
            return
        for run in plan.runs:
            self.left[run.unit] -= run.stop - run.first
            if self.left[run.unit] == 0:
                del self.left[run.unit]
                self._forget(run.unit)

    def _forget(self, unit: int) -> None:
        """Delete a fragment that is no longer needed."""
        self.job.data_path(unit).unlink(missing_ok=True)


@dataclass(frozen=True)
class _Task:
    """What a worker does: a unit, or a shard of a lane."""

    unit: int = -1
    lane: int = -1
    plan: ShardPlan | None = None

    @property
    def doing(self) -> str:
        """In words."""
        return "assembled a shard" if self.plan is not None else "began a unit"


@dataclass
class Drive:
    """One split's conversion, at one or several sizes."""

    lanes: list[Lane]
    executor: Executor
    watcher: Watcher
    workers: int = 1
    """Tasks that the executor runs at a time."""
    stop_on_error: bool = False
    """Raise at the first sample that cannot be converted."""
    after_unit: Callable[[list[UnitDone]], None] = lambda _: None
    """Told of each finished unit, as it is at each size."""
    _flying: dict[Future[Any], _Task] = field(default_factory=dict)
    _todo: deque[int] = field(default_factory=deque)
    """Units not handed out yet, rising but for those that come again."""
    _deaths: dict[_Task, list[int | None]] = field(default_factory=lambda: defaultdict(list))
    """By task, the keys that workers were at when they died."""
    _crashed: dict[int, frozenset[int]] = field(default_factory=dict)
    """By unit, the keys that are skipped for having ended two workers."""

    def run(self) -> list[list[ShardDone]]:
        """Convert what is not done yet; returns the shards in order, per lane.

        Raises:
            WorkerError: workers keep dying, and no single sample is to blame.
            SampleError: with `stop_on_error`, the first bad sample.
            OSError: the disk is full, or a file could not be written.
        """
        self._find_todo()
        for unit in range(self.lanes[0].job.plan.units):
            while not all(unit in lane.journal.units for lane in self.lanes):
                self._submit(unit)
                self._collect()
            for number, lane in enumerate(self.lanes):
                for plan in lane.take(unit):
                    self._assemble(number, plan)
        for number, lane in enumerate(self.lanes):
            for plan in lane.sink.close():
                self._assemble(number, plan)
        while self._flying:
            self._collect()
        return [[lane.journal.shards[number] for number in sorted(lane.journal.shards)] for lane in self.lanes]

    def _find_todo(self) -> None:
        for lane in self.lanes:
            lane.forget_damaged()
        first = self.lanes[0].journal.units
        for unit in range(self.lanes[0].job.plan.units):
            if all(unit in lane.journal.units for lane in self.lanes):
                self._note(first[unit])
            else:
                self._todo.append(unit)

    def _submit(self, current: int) -> None:
        """Keep the workers busy, but not so far ahead of the unit waited for that fragments pile up."""
        window = 1 if self.workers == 1 else 3 * self.workers
        jobs = [lane.job for lane in self.lanes]
        while self._todo and len(self._flying) < window and self._todo[0] < current + 16 * window:
            unit = self._todo.popleft()
            wanted = [number for number, lane in enumerate(self.lanes) if unit not in lane.journal.units]
            crashed = self._crashed.get(unit, frozenset())
            task = _Task(unit=unit)
            careful = task in self._deaths
            self._flying[self.executor.submit(convert, jobs, wanted, unit, crashed, careful=careful)] = task

    def _collect(self) -> None:
        for future in wait(self._flying, return_when=FIRST_COMPLETED).done:
            task = self._flying.pop(future)
            try:
                result = future.result()
            except WorkerError as error:
                self._died(task, error)
                continue
            if task.plan is None:
                self._unit_done(task.unit, result)
            else:
                self.lanes[task.lane].journal.add(result)
                self.lanes[task.lane].release(task.plan)

    def _unit_done(self, unit: int, done: list[UnitDone]) -> None:
        missing = [lane for lane in self.lanes if unit not in lane.journal.units]
        for lane, part in zip(missing, done, strict=True):
            lane.journal.add(part)
        self.after_unit(done)
        self._note(done[0])

    def _note(self, done: UnitDone) -> None:
        self.watcher.advance(done.written + done.skipped, done.source_bytes, done.skipped)
        if done.problem and self.stop_on_error:
            way_out = "repair or remove it and give --no-resume, or leave out --on-error stop to skip it"
            raise SampleError("stopped", f"{done.problem}: {way_out}")

    def _died(self, task: _Task, error: WorkerError) -> None:
        """A worker died: its task comes again."""
        at = last_seen(self.lanes[0].job.work, error.process)
        key = at[1] if at is not None and task.unit == at[0] else None
        deaths = self._deaths[task]
        if task.unit >= 0 and key is not None and key in deaths:
            self._crashed[task.unit] = self._crashed.get(task.unit, frozenset()) | {key}
            deaths.clear()
            self.watcher.say(f"{error} at {self.lanes[0].job.name(key)!r}; the sample is skipped")
        else:
            deaths.append(key)
            if len(deaths) >= _DEATHS:
                raise WorkerError(
                    f"{error}, as {_DEATHS - 1} others at the same place (out of memory?): free memory or lower "
                    "--workers, and run the same command again to go on"
                )
            what = f"at {self.lanes[0].job.name(key)!r}" if key is not None else f"while it {task.doing}"
            self.watcher.say(f"{error} {what}; that {'unit ' if key is not None else ''}is done again")
        if task.unit >= 0:
            self._todo.appendleft(task.unit)
        else:
            assert task.plan is not None
            self._submit_shard(task.lane, task.plan)

    def _assemble(self, lane: int, plan: ShardPlan) -> None:
        if plan.number in self.lanes[lane].journal.shards:
            self.lanes[lane].release(plan)
        else:
            self._submit_shard(lane, plan)

    def _submit_shard(self, lane: int, plan: ShardPlan) -> None:
        task = self.executor.submit(self.lanes[lane].sink.assemble(), self.lanes[lane].job, plan)
        self._flying[task] = _Task(lane=lane, plan=plan)
