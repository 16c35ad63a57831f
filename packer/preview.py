"""What a build would do, without writing anything: the scan, the splits, and a few samples converted in memory."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packer.convert import Job
from packer.plan import Plan
from packer.recipe import choose_codec
from packer.sources.detect import detect
from packer.sources.refs import RefTable, RefWriter
from packer.split import divide
from packer.unit import SplitJob, stored_fields
from packer_reader.errors import SampleError
from packer_reader.format.names import line_text
from packer_reader.format.tar import member_size
from packer_reader.machine import usable_cpus
from packer_reader.sizes import format_bytes

if TYPE_CHECKING:
    from packer.recipe import Recipe
    from packer.sources.base import Source

__all__ = ["Preview", "preview"]

_TRIED = 32
"""Samples converted for the estimate."""
_IMBALANCE = 10
"""Largest to smallest class that is worth a word."""
_SHOWN = 10
_WORKER_MEMORY = 350 << 20
"""Of a worker with torch and the codecs, without images, in bytes."""


@dataclass(frozen=True)
class Preview:
    """The answer of `packer plan`."""

    source: str
    type: str
    reason: str
    samples: int
    source_bytes: int
    splits: dict[str, int]
    classes: dict[str, int]
    """Samples by class, over all splits."""
    problems: list[dict[str, Any]]
    """Samples that would be skipped, as in errors.jsonl; of those tried, too."""
    notices: list[str]
    ignored: dict[str, int]
    codec: str
    tried: int
    estimate: dict[str, float]
    """store_bytes, peak_disk_bytes, peak_memory_bytes, seconds, workers; empty when no sample could be tried."""

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        lines = [
            f"source    {self.source!r}: {self.type} ({self.reason})",
            f"samples   {self.samples:,}, {format_bytes(self.source_bytes)}, stored as {self.codec}",
        ]
        lines += [f"split     {name}: {count:,}" for name, count in self.splits.items()]
        lines += self._class_lines()
        lines += [f"problem   {p['name']!r}: {p['class']}, {p['reason']}" for p in self.problems[:_SHOWN]]
        if len(self.problems) > _SHOWN:
            lines.append(f"          ... and {len(self.problems) - _SHOWN} more (--json lists all)")
        lines += [f"note      {notice}" for notice in self.notices]
        if self.ignored:
            kinds = ", ".join(f"{count:,} {suffix or 'without extension'}" for suffix, count in self.ignored.items())
            lines.append(f"left out  {kinds}")
        if self.estimate:
            e, names = self.estimate, ("store", "peak_disk", "peak_memory")
            sizes = ", ".join(f"{name.replace('_', ' ')} {format_bytes(e[f'{name}_bytes'])}" for name in names)
            work = f"{e['seconds']:,.0f} s with {e['workers']:.0f} workers (from {self.tried} samples)"
            lines.append(f"estimate  {sizes}, {work}")
        return lines

    def _class_lines(self) -> list[str]:
        if not self.classes:
            return ["classes   none"]
        counts = [count for count in self.classes.values() if count]
        lines = [
            f"classes   {len(self.classes):,}, {min(counts, default=0):,} to {max(counts, default=0):,} samples each"
        ]
        lines += [f"class     {line_text(name)}: {count:,}" for name, count in list(self.classes.items())[:_SHOWN]]
        if len(self.classes) > _SHOWN:
            lines.append(f"          ... and {len(self.classes) - _SHOWN} more (--json lists all)")
        if counts and max(counts) > _IMBALANCE * min(counts):
            lines.append(
                f"note      the largest class has {max(counts) / min(counts):.0f} times the samples of the smallest"
            )
        return lines


def preview(path: str, recipe: Recipe, source_type: str | None, workers: int | None) -> Preview:
    """Scan a source and estimate its conversion.

    Raises:
        SourceError: it cannot be listed.
        UsageError: the recipe does not fit it.
    """
    Job(workers=workers)
    source = detect(path, source_type)
    with tempfile.TemporaryDirectory(prefix="packer-plan-") as folder:
        with RefWriter(Path(folder)) as writer:
            listing = source.scan(writer)
        refs = RefTable(Path(folder))
        splits = divide(recipe, listing, refs) if len(refs) else []
        counts = np.bincount(refs.labels.clip(min=0), minlength=len(listing.classes or ()))
        job = SplitJob(
            recipe,
            source,
            Path(folder),
            None,
            len(refs),
            choose_codec(recipe, listing.suffixes),
            listing.classes,
            Path(folder),
        )
        problems = [p.to_json() for p in listing.problems]
        used = max(1, min(workers or usable_cpus(), -(-len(refs) // recipe.unit)))
        tried, estimate = _try(job, source, refs, problems, used)
    return Preview(
        source=path,
        type=listing.type,
        reason=listing.reason,
        samples=listing.found,
        source_bytes=listing.bytes,
        splits={s.name: s.count for s in splits if s.name},
        classes=dict(zip(listing.classes or (), map(int, counts), strict=False)),
        problems=problems,
        notices=listing.notices,
        ignored=dict(listing.ignored),
        codec=job.codec,
        tried=tried,
        estimate=estimate,
    )


def _try(
    job: SplitJob, source: Source, refs: RefTable, problems: list[dict[str, Any]], workers: int
) -> tuple[int, dict[str, float]]:
    """Convert a spread of samples in memory; measure bytes and time."""
    places = Plan(len(refs), job.recipe.seed, _TRIED).refs(0) if len(refs) else np.empty(0, np.int64)
    sizes, pixels, seconds = list[int](), 0, 0.0
    for turn, place in enumerate(places.tolist()):
        started = time.perf_counter()
        try:
            blobs, image = stored_fields(job, source.read(refs[place]))
        except SampleError as error:
            problems.append({"name": refs.name(place), "class": error.failure, "reason": error.reason})
            continue
        if turn:
            seconds += time.perf_counter() - started  # the first one loads the codecs
        sizes.append(sum(member_size(len(blob)) for blob in blobs))
        pixels = max(pixels, image.size[0] * image.size[1])
    if not sizes:
        return len(places), {}
    mean = sum(sizes) / len(sizes)
    store = mean * len(refs)
    in_flight = min(store, 3 * workers * job.recipe.unit * mean + 2 * job.recipe.shard_bytes)
    largest = float(refs.sizes.max())
    memory = workers * (_WORKER_MEMORY + 4 * largest + 12 * pixels) + 100e6
    return len(places), {
        "store_bytes": round(store),
        "peak_disk_bytes": round(store + in_flight),
        "peak_memory_bytes": round(memory),
        "seconds": round(len(refs) * seconds / max(1, len(sizes) - 1) / workers, 1),
        "workers": workers,
    }
