"""How fast a store is read, stage by stage, against what the machine can do; and the raw folder beside it."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from packer.measure.settings import Setting
from packer.measure.stages import raw_files
from packer.measure.trial import in_a_process
from packer_reader.errors import UsageError
from packer_reader.machine import free_memory, usable_cpus
from packer_reader.sizes import format_bytes
from packer_reader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from packer.measure.trial import Loop, What

__all__ = ["Benched", "Stage", "bench", "bounds_of"]

_SOUND = 0.6
"""Share of the decoding rate that batches reach where decoding images is most of their work."""
_SOME = 10
"""Reads or faults a second that are worth a line."""
Binds = Literal["disk", "reading", "decoding", "transport"]

_SAYS: dict[Binds, str] = {
    "disk": "the disk binds: the store is larger than the memory that may hold it, so that every epoch reads it; store "
    "smaller samples (--resize, --encode jpg), or add memory",
    "reading": "finding, checking and copying samples binds: give more CPUs",
    "decoding": "decoding binds: store smaller images (--resize) or raw ones (--encode raw), or give more CPUs",
    "transport": "handing batches to the trainer binds: take larger batches, or smaller crops",
}


@dataclass(frozen=True)
class Stage:
    """One stage of reading."""

    name: str
    rate: float
    """Samples a second: median of the repeats."""
    low: float
    high: float
    bytes: float
    """Bytes of a sample that go through it."""
    limit: str
    """What it is compared with."""
    share: float | None
    """Of the limit; None where there is none."""
    reads: float = 0.0
    """Reads a second that the disk was asked for; 0 where nothing was read, or the system does not say."""
    read_bytes: float = 0.0
    """Mean size of a read, in bytes."""
    faults: float = 0.0
    """Major faults a second: pages of mapped files that had to be read first."""
    busy: float = 0.0
    """Share of all CPUs."""


@dataclass(frozen=True)
class Benched:
    """What `packer bench` found."""

    loop: Loop
    cpus: int
    fits: bool
    """Whether memory can hold the store."""
    limits: dict[str, float | None]
    """`disk` and `copied` in bytes a second, `decoded` in images a second by all CPUs, where the store has any."""
    stages: tuple[Stage, ...]
    binds: Binds
    raw: tuple[Stage, ...] = ()
    """The raw folder, cold and warm."""

    def stage(self, name: str) -> Stage | None:
        """The stage of this name."""
        return next((one for one in (*self.stages, *self.raw) if one.name == name), None)

    @property
    def speedups(self) -> dict[str, float]:
        """How many times as fast the store is read as the raw folder: `cold` and `warm`."""
        pairs = {"cold": ("first epoch, cold", "raw folder, cold"), "warm": ("end to end", "raw folder, warm")}
        found = {name: (self.stage(ours), self.stage(theirs)) for name, (ours, theirs) in pairs.items()}
        return {name: one.rate / other.rate for name, (one, other) in found.items() if one and other}

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return asdict(self) | {"says": _SAYS[self.binds], "speedups": self.speedups}

    def lines(self) -> list[str]:
        """For people."""
        limits = self.limits
        decoded = f", {limits['decoded']:,.0f} images/s decoded by the bare library" if limits["decoded"] else ""
        copied = f"memory copied at {_speed(limits['copied'])}"
        lines = [
            f"machine   {self.cpus} CPUs; disk {_speed(limits['disk'])} in sequence, {copied}{decoded}",
            "",
            "stage                samples/s   of repeats               MB/s  CPU   share of what could be",
        ]
        for one in (*self.stages, *self.raw):
            share = "" if one.share is None else f"{one.share:4.0%} of {one.limit}"
            spread, speed = f"{one.low:,.0f} to {one.high:,.0f}", one.rate * one.bytes / 1e6
            lines.append(
                f"{one.name:18} {one.rate:11,.0f}   {spread:22} {speed:6,.0f} {one.busy:4.0%}   {share}".rstrip()
            )
        from_disk = [one for one in (*self.stages, *self.raw) if one.reads >= _SOME or one.faults >= _SOME]
        lines += ["", *(_io(one) for one in from_disk)] if from_disk else []
        lines += ["", f"* {_SAYS[self.binds]}"]
        lines += [f"  {name}: {times:.1f} times as fast as the raw folder" for name, times in self.speedups.items()]
        return lines


def _speed(rate: float | None) -> str:
    return f"{format_bytes(round(rate or 0))}/s"


def _io(one: Stage) -> str:
    reads = f"{one.reads:,.0f} reads/s of {format_bytes(round(one.read_bytes))}, " if one.reads else ""
    return f"{one.name}: {reads}{one.faults:,.0f} major faults/s"


def bench(loop: Loop, raw: str | None, heard: Callable[[str, int], None]) -> Benched:
    """Measure the stages one after the other, each in a process of its own.

    Args:
        loop: what is read.
        raw: the folder that the store was made from; None leaves it out.
        heard: told of each stage before it is measured, and how many there are.

    Raises:
        PackerError: the store cannot be read so.
    """
    loop.data(Setting(0))  # what is wrong is said before anything is measured
    store = open_store(loop.store, loop.split)
    picture = next((field for field in store.manifest.fields if field.kind == "image"), None)
    if raw is not None:
        raw_files(raw)
        if picture is None:
            raise UsageError(f"--raw is about folders of images, and {loop.store!r} holds none: leave it out")
    fits = store.manifest.bytes <= free_memory() // 2
    total = 7 + (picture is not None) + 2 * (raw is not None)
    run = _Run(replace(loop, warm=fits), usable_cpus(), loop.sample_bytes(), lambda name: heard(name, total))
    limits = run.trial("limits", "limits", loop, run.alone)
    bounds = _reading(run, limits, picture.codec if picture is not None else None)
    if not fits:
        bounds["disk"] = run.rate("disk, cold")
    found = _raw_folder(run, raw) if raw is not None else ()
    return Benched(loop, run.cpus, fits, limits, tuple(run.stages), min(bounds, key=lambda name: bounds[name]), found)


class _Run:
    """Stages as they are measured."""

    def __init__(self, loop: Loop, cpus: int, stored: float, heard: Callable[[str], None]) -> None:
        self.loop, self.cpus, self.stored, self._heard = loop, cpus, stored, heard
        self.alone, self.together = Setting(0, cpus), Setting(cpus)
        """One process with a thread per CPU; a worker per CPU."""
        self.stages = list[Stage]()

    def trial(self, name: str, what: What, loop: Loop, setting: Setting, **more: Any) -> dict[str, Any]:
        """What a process of its own measures."""
        self._heard(name)
        return in_a_process(what, loop, setting, **more)

    def add(self, name: str, found: dict[str, Any], limit: str = "", most: float | None = None) -> None:
        """A stage is done; `most` samples a second is what it could have been."""
        size = found.get("bytes", self.stored)
        self.stages.append(_stage(name, found, size, limit, most * size if most else None))

    def rate(self, name: str) -> float:
        """Samples a second of a stage."""
        return next(stage.rate for stage in self.stages if stage.name == name)


def _reading(run: _Run, limits: dict[str, Any], codec: str | None) -> dict[Binds, float]:
    """The stages of the store, from the disk to the trainer; what each of them allows."""
    loop = run.loop
    encoded = replace(loop, decode="bytes", crop=None) if loop.seq_len is None else loop
    cold = run.trial("disk", "loop", replace(encoded, cold=True, warm=False), Setting(0))
    run.add("disk, cold", cold, "the sequential read", limits["disk"] / run.stored)
    copied = limits["copied"] / run.stored
    run.add("page cache", run.trial("page cache", "loop", encoded, Setting(0)), "a memory copy", copied)
    if codec is not None:
        decoded = run.trial("decode", "decode", loop, run.alone)
        run.add("decode", decoded, "whole images, bare library", limits["decoded"])
    within = ("decoding", run.rate("decode")) if codec is not None else ("a memory copy", copied)
    run.add("batch", run.trial("batch", "loop", loop, run.alone), *within)
    run.add("transport", run.trial("transport", "handover", loop, run.together))
    bounds = bounds_of(run.stages, run.cpus, coded=codec not in {None, "npy"})
    end = run.trial("end to end", "loop", loop, run.together)
    run.add("end to end", end, "its slowest stage", min(bounds.values()))
    first = run.trial("first epoch", "loop", replace(loop, cold=True, warm=False), run.together)
    run.add("first epoch, cold", first, "end to end", run.rate("end to end"))
    return bounds


def _raw_folder(run: _Run, folder: str) -> tuple[Stage, Stage]:
    """The raw folder, from the disk; and what was read of it just now, from memory."""
    cold = replace(run.loop, cold=True, warm=False)
    began = run.trial("raw folder, cold", "raw", cold, run.together, folder=folder, known=None)
    known = max(began["samples"], 4 * run.loop.batch_size)
    again = run.trial("raw folder, warm", "raw", run.loop, run.together, folder=folder, known=known)
    one, other = (_stage(f"raw folder, {n}", f, f["bytes"], "", None) for n, f in (("cold", began), ("warm", again)))
    return one, other


def _stage(name: str, found: dict[str, Any], size: float, limit: str, most: float | None) -> Stage:
    """A stage from what was measured; `most` bytes a second is what it could have been."""
    rates, seconds = found["rates"], max(found.get("seconds", 0.0), 1e-9)
    rate, requests = statistics.median(rates), found.get("requests", 0)
    return Stage(
        name,
        rate,
        min(rates),
        max(rates),
        size,
        limit,
        rate * size / most if most else None,
        reads=requests / seconds,
        read_bytes=found.get("requested", 0) / requests if requests else 0.0,
        faults=found.get("faults", 0) / seconds,
        busy=found["busy"],
    )


def bounds_of(stages: list[Stage], cpus: int, *, coded: bool) -> dict[Binds, float]:
    """Samples a second that each stage allows, when all CPUs do what one process did.

    Args:
        stages: measured so far.
        cpus: of this job.
        coded: whether images are decoded, rather than copied.
    """
    rates = {one.name: one.rate for one in stages}
    found: dict[Binds, float] = {"reading": cpus * rates["page cache"], "transport": rates["transport"]}
    if coded and rates["batch"] >= _SOUND * rates["decode"]:
        return found | {"decoding": rates["decode"]}
    if coded:  # most of the time goes into what is not the image's decoding: masks, boxes, text, or tiny images
        return found | {"reading": min(found["reading"], rates["batch"]), "decoding": rates["decode"]}
    # One process filled these batches, its threads only copy.
    return found | {"reading": min(found["reading"], cpus * rates["batch"])}
