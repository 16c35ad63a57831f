"""What a build would do, without writing anything: the scan, the splits, and a few samples converted in memory."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packer.estimate import in_flight, try_samples, worker_memory
from packer.fields import stored_as
from packer.gather import gathers
from packer.recipe import choose_codec, several_sizes
from packer.resources import fitted, planned_workers
from packer.scan import scan
from packer.sources.base import Spooling
from packer.sources.classes import known_classes
from packer.sources.detect import detect
from packer.sources.refs import SPOOL, RefTable
from packer.sources.text import Documents
from packer.split import divide
from packer.tokens.window import of_text, with_unit
from packer.unit import SplitJob
from packer_reader.format.names import line_text
from packer_reader.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer.estimate import Tried
    from packer.job import Job
    from packer.recipe import Recipe

__all__ = ["Preview", "preview"]

_TRIED = 32
"""Samples converted for the estimate."""
_IMBALANCE = 10
"""Largest to smallest class that is worth a word."""
_SHOWN = 10
_PARENT = 100 << 20
"""Bytes of the process that the user started."""


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


def preview(paths: Sequence[str], recipes: Sequence[Recipe], job: Job) -> Preview:
    """Scan a source and estimate its conversion.

    Raises:
        SourceError: it cannot be listed.
        UsageError: the recipe does not fit it.
    """
    known_names = known_classes(job.classes) if job.classes else ()
    source = detect(paths, job.source_type, known_names, job.fields, recipes[0].text)
    recipes = several_sizes(list(recipes))
    if isinstance(source, Documents):
        recipes = [of_text(recipes, source.text)]
    recipes = fitted(recipes, job)
    with tempfile.TemporaryDirectory(prefix="packer-plan-") as name:
        folder = Path(name)
        listing = scan(source, folder / "refs", job)
        if isinstance(source, Spooling):
            source = source.spooled_at(folder / "refs" / SPOOL)
        refs = RefTable(folder / "refs")
        recipes = [with_unit(recipe, listing.bytes, listing.found) for recipe in recipes]
        recipe = recipes[0]
        splits = divide(recipe, listing, refs) if len(refs) else []
        known = refs.labels[refs.labels >= 0]  # a data set in Python has its labels with its samples
        counts = np.bincount(known, minlength=len(listing.classes or ())) if len(known) else ()
        same: dict[str, Any] = {
            "source": source, "refs": folder / "refs", "members": None, "count": len(refs), "classes": listing.classes,
            "work": folder, "units": folder, "labelled": listing.labelled,
        }  # fmt: skip
        codecs = [choose_codec(each, listing.suffixes) for each in recipes]
        jobs = [
            SplitJob(recipe=each, codec=codec, extras=stored_as(listing.extras, codec), **same)
            for each, codec in zip(recipes, codecs, strict=True)
        ]
        tried = try_samples(jobs, _TRIED)
        used = min(planned_workers(job.workers, recipe, refs))
        estimate = _estimate(recipe, refs, tried, used)
        if estimate and (folder / "refs" / SPOOL).exists():
            estimate["peak_disk_bytes"] += (folder / "refs" / SPOOL).stat().st_size
        if estimate and isinstance(source, Documents) and gathers(job, source, folder / "refs", listing.bytes, recipe):
            estimate["peak_disk_bytes"] += listing.bytes
    return Preview(
        source=", ".join(paths) or source.type,
        type=listing.type,
        reason=listing.reason,
        samples=listing.found,
        source_bytes=listing.bytes,
        splits={s.name: s.count for s in splits if s.name},
        classes=dict(zip(listing.classes or (), map(int, counts), strict=False)),
        problems=[p.to_json() for p in (*listing.problems, *tried.problems)],
        notices=listing.notices,
        ignored=dict(listing.ignored),
        codec=recipe.text.dtype if recipe.text else jobs[0].codec,
        tried=tried.samples,
        estimate=estimate,
    )


def _estimate(recipe: Recipe, refs: RefTable, tried: Tried, workers: int) -> dict[str, float]:
    if not tried.sizes:
        return {}
    store = tried.mean * len(refs)
    return {
        "store_bytes": round(store),
        "peak_disk_bytes": round(store + in_flight(recipe, workers, tried.mean, len(refs))),
        "peak_memory_bytes": round(workers * worker_memory(recipe, int(refs.sizes.max())) + _PARENT),
        "seconds": round(len(refs) * tried.seconds / workers, 1),
        "workers": workers,
    }
