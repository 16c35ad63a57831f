"""What a build takes of the machine: workers and memory, decided before it starts; disk, from its first unit."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packer.estimate import fitting_pixels, fitting_workers, in_flight
from packer.runners import make_runner
from packer.scan import SMALL
from packer_reader.errors import OutputError, WorkerError
from packer_reader.machine import usable_cpus, usable_memory
from packer_reader.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from packer.job import Job
    from packer.recipe import Recipe
    from packer.sources.refs import RefTable
    from packer.unit import SplitJob, UnitDone

__all__ = ["Room", "crew", "fitted", "planned_workers", "wait_for_workers"]

_STARTS = 4
"""Times that workers may die while they load."""


def fitted(recipes: list[Recipe], job: Job) -> list[Recipe]:
    """The recipes with `max_pixels` lowered to what one worker can hold in this machine's memory.

    It depends on the machine alone, not on the number of workers, and stands in the manifest. Text has no pixels.
    """
    limit = fitting_pixels(usable_memory(), recipes[0])
    if limit == recipes[0].max_pixels or recipes[0].text is not None:
        return recipes
    job.watcher.say(f"memory is short: images over {limit:,} pixels are skipped, as with --max-pixels {limit}")
    return [replace(recipe, max_pixels=limit) for recipe in recipes]


def crew(job: Job, recipe: Recipe, refs: RefTable, *, resumed: bool) -> tuple[Executor, int]:
    """Who converts, and how many of them.

    A small job runs in this process; one that was interrupted does not, since its samples may be what ended it.
    """
    if job.runner == "serial" or (len(refs) < SMALL and not resumed and job.workers in {None, 1}):
        return make_runner("serial", 1), 1
    workers, fitting = planned_workers(job.workers, recipe, refs)
    if fitting < workers and job.workers is None:
        job.watcher.say(f"memory is short: {fitting} workers instead of {workers} (--workers)")
        workers = fitting
    elif fitting < workers:
        job.watcher.say(f"memory may be short: it is enough for {fitting} workers, --workers is {workers}")
    return make_runner(job.runner, workers), workers


def planned_workers(asked: int | None, recipe: Recipe, refs: RefTable) -> tuple[int, int]:
    """Workers that there is work for, and how many of them there is memory for."""
    workers = max(1, min(asked or usable_cpus(), -(-len(refs) // recipe.unit)))
    return workers, fitting_workers(workers, usable_memory(), recipe, int(refs.sizes.max(initial=0)))


def wait_for_workers(executor: Executor, workers: int) -> None:
    """Until all have loaded; those that are killed meanwhile are replaced.

    Raises:
        WorkerError: they die again and again.
    """
    for left in reversed(range(_STARTS)):
        try:
            for started in [executor.submit(os.getpid) for _ in range(workers)]:
                started.result()
        except WorkerError as error:
            if not left:
                raise WorkerError(
                    f"{error} before it had anything to do: in a script, call packer under "
                    "`if __name__ == '__main__':`, since workers import the script; if it is there, see what the "
                    "worker printed"
                ) from None
        else:
            return


@dataclass
class Room:
    """Sees, after the first unit, whether the stores will fit on the disk: hours before they would not."""

    samples: int
    """Of the whole build."""
    store: Path
    """Folder where the stores grow."""
    workers: int
    jobs: Sequence[SplitJob] = ()
    """Of the split that is converted."""
    _checked: bool = False

    def __call__(self, done: Sequence[UnitDone]) -> None:
        """Hear of a finished unit.

        Raises:
            OutputError: there will not be enough room.
        """
        tried = done[0].written + done[0].skipped
        if self._checked or len(done) < len(self.jobs) or not tried:
            return
        self._checked = True
        job = self.jobs[0]
        mean = sum(part.data[0] for part in done) / tried
        total, flying = mean * self.samples, in_flight(job.recipe, self.workers, mean, self.samples)
        apart = os.stat(self.store).st_dev != os.stat(job.units).st_dev  # noqa: PTH116
        _check(self.store, total if apart else total + flying, [self.store] if apart else [self.store, job.units])
        if apart:
            _check(job.units, flying, [job.units])


def _check(folder: Path, need: float, held: Sequence[Path]) -> None:
    """Refuse when a disk has less room than is needed, what is held there already included."""
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize + sum(map(_held, held))
    if need > free:
        raise OutputError(
            f"about {format_bytes(need)} will be needed in {str(folder)!r} and {format_bytes(free)} are free: make "
            "room, choose another place, or store less (--resize, --quality)"
        )


def _held(folder: Path) -> int:
    """Bytes that an interrupted build has written already."""
    held = 0
    for path, _, files in os.walk(folder):
        for name in files:
            held += os.lstat(os.path.join(path, name)).st_size  # noqa: PTH118
    return held
