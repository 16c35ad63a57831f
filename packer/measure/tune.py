"""Settings of a loop, swept: each measured in a process of its own, none that memory or time do not allow."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from packer.measure.script import LIMIT, measure_script
from packer.measure.settings import Measured, Setting, bottleneck, grid, knee, refinements
from packer.measure.trial import in_a_process
from packer_reader.errors import UsageError, WorkerError
from packer_reader.machine import free_memory, usable_cpus
from packer_reader.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from packer.measure.settings import Binds
    from packer.measure.trial import Loop
    from packer_reader import StreamDataset

__all__ = ["Tuned", "tune"]

_STARTS = ("fork", "forkserver")
_ENOUGH = 3
"""Settings that a choice should rest on."""
_WAITS = 20.0
"""Seconds that a program may at least take to begin, once others have been measured."""
_BATCHES = 4
"""Of an epoch at least: the first of each is not counted."""
_SAYS: dict[Binds, str] = {
    "trainer": "the training step binds: reading keeps up, and more workers would only take memory",
    "storage": "the disk binds: many bytes came from it, not from memory; a faster disk, more memory, or smaller "
    "samples (--resize) help, more workers do not",
    "cpu": "the CPUs bind: they are all at work on reading and decoding; store smaller images (--resize), decode less "
    "(--encode raw, --roi), or give more CPUs",
    "alone": "one process reads and trains in turns, so that no CPU is full: take workers",
    "transport": "neither disk nor CPUs are full: handing batches to the trainer binds; take larger batches",
}


@dataclass(frozen=True)
class Tuned:
    """What a sweep has found."""

    loop: Loop
    measured: tuple[Measured, ...]
    left_out: dict[str, list[Setting]]
    """Settings that were not measured, by the reason."""
    chosen: Measured
    binds: Binds
    script: Sequence[str] | None = None
    """The program that was run, where it was one."""

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "loop": asdict(self.loop),
            "script": list(self.script) if self.script else None,
            "measured": [one.to_json() for one in self.measured],
            "left_out": {reason: [asdict(one) for one in settings] for reason, settings in self.left_out.items()},
            "chosen": self.chosen.to_json(),
            "binds": self.binds,
            "says": _SAYS[self.binds],
            "lines": self.lines_to_paste(),
        }

    def lines_to_paste(self) -> list[str]:
        """The data set and the loader with the chosen setting, as Python."""
        one, loop = self.chosen.setting, self.loop
        parts = [repr(loop.store), f"batch_size={loop.batch_size}"] if self.script is None else ["..."]
        parts += [f"split={loop.split!r}"] if loop.split is not None else []
        parts += [f"crop=RandomResizedCrop({loop.crop})"] if loop.crop is not None else []
        parts += [f"seq_len={loop.seq_len}"] if loop.seq_len is not None else []
        parts += [f"threads={one.threads}"] if one.threads > 1 else []
        options = [f"num_workers={one.workers}"]
        if one.workers:
            options += [f"prefetch_factor={one.prefetch}"] if one.prefetch != Setting(1).prefetch else []
            options += [f"multiprocessing_context={one.start!r}"] if one.start != Setting(1).start else []
        options += ["pin_memory=True"] if one.pin_memory else []
        return [f"ds = StreamDataset({', '.join(parts)})", f"batches = loader(ds, {', '.join(options)})"]

    def lines(self) -> list[str]:
        """For people."""
        lines = [
            "workers threads prefetch start        samples/s   of repeats           wait  CPU   first    memory (said)"
        ]
        for one in self.measured:
            s = one.setting
            mark = "*" if one is self.chosen else " "
            lines.append(
                f"{s.workers:7} {s.threads:7} {s.prefetch:8} {s.start + (' pinned' if s.pin_memory else ''):11} "
                f"{one.rate:10,.0f} {mark} {min(one.rates):,.0f} to {max(one.rates):,.0f}".ljust(70)
                + f"{one.stalled:5.0%} {one.busy:5.0%} {one.first:5.1f} s  {format_bytes(one.peak)} "
                f"({format_bytes(one.predicted)})"
            )
        for reason, settings in self.left_out.items():
            named = ", ".join(f"{one.workers} x {one.threads} ({one.prefetch} ahead, {one.start})" for one in settings)
            lines.append(f"not tried, {reason}: {named}")
        if len(self.measured) < _ENOUGH:
            lines.append(f"only {len(self.measured)} settings were tried, which is too few to choose: raise --limit")
        return [*lines, "", f"* {_SAYS[self.binds]}", "", *self.lines_to_paste()]


def tune(loop: Loop, limit: float, heard: Callable[[Setting, int], None], script: Sequence[str] | None = None) -> Tuned:
    """Try workers and threads, then what else may matter around the best of them, for so long.

    Args:
        loop: what is run with each.
        limit: seconds that the whole may take, the last trial apart.
        heard: told of each setting before it is tried, and how many there will be.
        script: a program of `program_of` that is run instead of a loop of ours.

    Raises:
        PackerError: the store cannot be read so.
    """
    if script is None and len(loop.data(Setting(0))) < _BATCHES:
        raise UsageError(f"an epoch has under {_BATCHES} batches of {loop.batch_size}: give a smaller --batch-size")
    settings, pinned = grid(usable_cpus()), _has_cuda()
    total = len(settings) + len(refinements(Setting(1), _STARTS, pinned=pinned))
    sweep = _Sweep(loop, script, time.monotonic() + limit, lambda setting: heard(setting, total))
    for setting in settings:
        sweep.attempt(setting)
    if not sweep.measured:
        raise UsageError(f"every setting needs {sweep.too_large}: lower --batch-size")
    for setting in refinements(knee(sweep.measured).setting, _STARTS, pinned=pinned):
        sweep.attempt(setting)
    chosen = knee(sweep.measured)
    binds = bottleneck(chosen, step=1.0 if script else loop.step)
    return Tuned(loop, tuple(sweep.measured), sweep.left_out, chosen, binds, script)


class _Sweep:
    """Settings as they are tried."""

    def __init__(self, loop: Loop, script: Sequence[str] | None, ends: float, heard: Callable[[Setting], None]) -> None:
        self._loop, self._script, self._ends, self._heard = loop, script, ends, heard
        self._most = free_memory() // 2
        self.too_large = f"over half of the free memory ({format_bytes(self._most)})"
        self.measured = list[Measured]()
        self.left_out = dict[str, list[Setting]]()
        self._longest = 0.0
        """Seconds of a trial so far."""

    def attempt(self, setting: Setting) -> None:
        """Measure a setting, or note why not.

        Raises:
            PackerError: the first one cannot be measured.
        """
        predicted = 0 if self._script else _predicted(self._loop.data(setting), setting)
        if predicted > self._most:
            self._leave_out(setting, self.too_large)
            return
        if time.monotonic() > self._ends and self.measured:
            self._leave_out(setting, "for want of time (--limit)")
            return
        self._heard(setting)
        began = time.monotonic()
        try:
            found = self._run(setting)
        except WorkerError as error:
            if not self.measured:
                raise
            self._leave_out(setting, str(error))
            return
        self._longest = max(self._longest, time.monotonic() - began)
        if "too_large" in found:
            self._leave_out(setting, self.too_large)
            return
        kept = {name: found[name] for name in ("stalled", "busy", "from_disk", "first", "peak")}
        predicted = found.get("predicted", predicted)
        self.measured.append(Measured(setting, tuple(found["rates"]), predicted=predicted, **kept))

    def _leave_out(self, setting: Setting, reason: str) -> None:
        self.left_out.setdefault(reason, []).append(setting)

    def _run(self, setting: Setting) -> dict[str, Any]:
        loop = self._loop
        if self._script is None:
            return in_a_process("loop", loop, setting)
        # One setting may hang where others do not: forkserver, in programs that do not guard their main part.
        waits = max(_WAITS, 4 * self._longest) if self._longest else LIMIT
        return measure_script(self._script, setting, loop, waits)


def _predicted(data: StreamDataset, setting: Setting) -> int:
    """Bytes of a loop through `packer_reader.loader`."""
    return data.memory(setting.workers, setting.prefetch, data.sent_together(setting.prefetch))


def _has_cuda() -> bool:
    import torch  # noqa: PLC0415 - the commands load it when they need it

    return torch.cuda.is_available()
