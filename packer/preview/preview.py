"""The scan, the splits, a look into samples, and a few of them converted in memory."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packer.estimate import in_flight, try_samples, worker_memory
from packer.fields import stored_as
from packer.gather import gathers
from packer.preview.result import Preview
from packer.preview.speeds import FOR_SPEED, measure_speeds
from packer.preview.suggest import codec_for, shards_for, size_for
from packer.preview.survey import Look, survey
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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer.drive import Watcher
    from packer.estimate import Tried
    from packer.fields import Extra
    from packer.job import Job
    from packer.preview.suggest import Suggestion
    from packer.preview.survey import Survey
    from packer.recipe import Recipe
    from packer.sample import Problem
    from packer.sources.base import Listing
    from packer.split import Split

__all__ = ["preview"]

Ints = np.ndarray[Any, np.dtype[np.int64]]

_TRIED = 32
"""Samples converted for the estimate."""
_CLASSES = 1 << 16
"""Numbers of classes without names beyond which they are no classes."""
_PARENT = 100 << 20
"""Bytes of the process that the user started."""


def preview(paths: Sequence[str], recipes: Sequence[Recipe], job: Job, *, look: float, sized: bool) -> Preview:
    """Scan a source, look into it, and estimate its conversion.

    Args:
        paths: sources.
        recipes: one per size.
        job: how it would be run; its watcher hears how far this is.
        look: seconds to look for copies and odd sizes.
        sized: whether the user has said how large shards are.

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
        labels = refs.labels
        known = labels[labels >= 0]  # a data set in Python has its labels with its samples
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
        job.watcher.begin("trying", min(_TRIED, len(refs)))
        tried = try_samples(jobs, _TRIED, lambda samples: job.watcher.advance(samples, 0, 0))
        seen = survey(_look(jobs[0], listing, refs, splits, look), job.watcher)
        used = min(planned_workers(job.workers, recipe, refs))
        estimate = _estimate(recipe, refs, tried, used)
        if estimate and (folder / "refs" / SPOOL).exists():
            estimate["peak_disk_bytes"] += (folder / "refs" / SPOOL).stat().st_size
        if estimate and isinstance(source, Documents) and gathers(job, source, folder / "refs", listing.bytes, recipe):
            estimate["peak_disk_bytes"] += listing.bytes
        found = _Found(listing.extras, seen, estimate.get("store_bytes", 0), sized)
        suggestions = _suggest(paths, jobs, refs, found, job.watcher) if estimate else []
    return Preview(
        source=", ".join(paths) or source.type,
        type=listing.type,
        reason=listing.reason,
        samples=listing.found,
        source_bytes=listing.bytes,
        splits={s.name: s.count for s in splits if s.name},
        classes=dict(zip(listing.classes or (), map(int, counts), strict=False)),
        missing=_missing(listing.classes or (), splits, labels),
        problems=_once([*listing.problems, *tried.problems, *seen.problems]),
        notices=listing.notices,
        ignored=dict(listing.ignored),
        codec=recipe.text.dtype if recipe.text else jobs[0].codec,
        tried=tried.samples,
        estimate=estimate,
        survey=seen,
        varied=recipe.fit not in {"stretch", "crop", "pad"} and _varied(seen, recipe),
        ignores_255=recipe.ignore_label == 255 and not recipe.label_map and not recipe.reduce_zero_label,
        suggestions=suggestions,
    )


def _look(job: SplitJob, listing: Listing, refs: RefTable, splits: Sequence[Split], seconds: float) -> Look:
    split_of = np.zeros(len(refs), np.int16)
    for number, split in enumerate(splits):
        if split.members is not None:
            split_of[split.members.astype(np.int64)] = number
    source: Any = job.source
    names = tuple(split.name or "" for split in splits)
    return Look(source, refs, names, split_of, listing.extras, job.recipe, seconds)


def _missing(classes: Sequence[str], splits: Sequence[Split], labels: Ints) -> dict[str, list[str]]:
    """By split the classes that others have and it has not; those without names by their numbers."""
    known = {s.name or "": labels[s.members] for s in splits if s.members is not None}
    most = max([len(classes), *(int(each.max()) + 1 for each in known.values() if len(each))], default=0)
    if len(known) < 2 or most > _CLASSES:
        return {}
    counts = {name: np.bincount(each[each >= 0], minlength=most) for name, each in known.items()}
    there = sum(counts.values()) > 0
    absent = {name: np.flatnonzero(there & (count == 0)).tolist() for name, count in counts.items()}
    named = [classes[number] if number < len(classes) else str(number) for number in range(most)]
    return {name: [named[number] for number in numbers] for name, numbers in absent.items() if numbers}


def _varied(seen: Survey, recipe: Recipe) -> bool:
    """Whether images have several sizes, or several ratios where they are resized by one side."""
    sides = seen.sides
    if not sides or recipe.text is not None:
        return False
    return any(sides[side]["0"] != sides[side]["100"] for side in ("height", "width"))


def _once(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """Each sample's first problem."""
    first: dict[str, Problem] = {}
    for problem in problems:
        first.setdefault(problem.name, problem)
    return [problem.to_json() for problem in first.values()]


def _suggest(
    paths: Sequence[str], jobs: Sequence[SplitJob], refs: RefTable, found: _Found, watcher: Watcher
) -> list[Suggestion]:
    """Size, codec, and shards for what these make of the store."""
    job, kinds, store_bytes = jobs[0], {extra.kind for extra in found.extras}, found.store_bytes / len(jobs)
    suggested: list[Suggestion] = []
    if job.recipe.text is None and len(jobs) == 1:
        kind = next((kind for kind in ("boxes", "mask") if kind in kinds), "image")
        suggested += size_for(kind, found.seen, job.recipe)
        given = {one.option: one.value for one in suggested}
        if given:
            fit: Any = given.get("--fit", job.recipe.fit)
            job = replace(job, recipe=replace(job.recipe, resize=(int(given["--resize"]),), fit=fit))
        if job.recipe.encode == "keep" and job.codec != "npy":
            watcher.begin("measuring", min(FOR_SPEED, len(refs)))
            speeds = measure_speeds(paths, job, refs, lambda samples: watcher.advance(samples, 0, 0))
            codec = codec_for(speeds, len(refs), job.codec) if speeds is not None else None
            if speeds is not None and codec is not None:
                suggested.append(codec)
                image = speeds.raw_bytes if codec.value == "raw" else speeds.encoded_bytes
                store_bytes = len(refs) * (image + speeds.other_bytes)
    return suggested + ([] if found.sized else [shards_for(store_bytes)])


@dataclass(frozen=True)
class _Found:
    """What suggestions follow from."""

    extras: Sequence[Extra]
    seen: Survey
    store_bytes: float
    """Of all sizes."""
    sized: bool
    """Whether the user has said how large shards are."""


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
