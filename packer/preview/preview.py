"""The scan, the splits, a look into samples, and a few of them converted in memory."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packer.estimate import in_flight, try_samples, worker_memory
from packer.fields import stored_as
from packer.gather import gathers
from packer.images import open_sample
from packer.measure.limits import copy_rate, decode_rate, disk_rate
from packer.plan import Plan
from packer.preview.result import Preview
from packer.preview.suggest import Speeds, codec_for, shards_for, size_for
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
from packer.stored import stored_sample
from packer.tokens.window import of_text, with_unit
from packer.unit import SplitJob, some_refs
from packer_reader.errors import SampleError
from packer_reader.machine import free_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

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
_FOR_SPEED = 24
"""Samples decoded again to see how fast that is."""
_FILES = 256
"""Files read from the disk to see how fast that is."""
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
        suggestions = _suggest(paths, jobs[0], refs, seen, (listing.extras, estimate, sized)) if estimate else []
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
        suggestions=suggestions,
    )


def _look(job: SplitJob, listing: Listing, refs: RefTable, splits: Sequence[Split], seconds: float) -> Look:
    split_of = np.zeros(len(refs), np.int64)
    for number, split in enumerate(splits):
        if split.members is not None:
            split_of[split.members.astype(np.int64)] = number
    source: Any = job.source
    names = tuple(split.name or "" for split in splits)
    return Look(source, refs, names, split_of, listing.extras, job.recipe.max_pixels, job.recipe.seed, seconds)


def _missing(classes: Sequence[str], splits: Sequence[Split], labels: Ints) -> dict[str, list[str]]:
    if len(splits) < 2 or not len(labels):
        return {}
    counts = {
        s.name or "": np.bincount(labels[s.members], minlength=len(classes)) for s in splits if s.members is not None
    }
    there = sum(counts.values()) > 0
    absent = {name: np.flatnonzero(there & (count == 0)).tolist() for name, count in counts.items()}
    return {name: [classes[number] for number in numbers] for name, numbers in absent.items() if numbers}


def _once(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """Each sample's first problem."""
    first: dict[str, Problem] = {}
    for problem in problems:
        first.setdefault(problem.name, problem)
    return [problem.to_json() for problem in first.values()]


def _suggest(
    paths: Sequence[str],
    job: SplitJob,
    refs: RefTable,
    seen: Survey,
    known: tuple[Sequence[Extra], dict[str, float], bool],
) -> list[Suggestion]:
    """Size, codec, and shards for what these make of the store."""
    extras, estimate, sized = known
    store_bytes, kinds = estimate["store_bytes"], {extra.kind for extra in extras}
    found: list[Suggestion] = []
    if job.recipe.text is None:
        found += size_for(next((kind for kind in ("boxes", "mask") if kind in kinds), "image"), seen, job.recipe)
        given = {one.option: one.value for one in found}
        if given:
            fit: Any = given.get("--fit", job.recipe.fit)
            job = replace(job, recipe=replace(job.recipe, resize=(int(given["--resize"]),), fit=fit))
        speeds = _speeds(paths, job, refs) if job.recipe.encode == "keep" and job.codec != "npy" else None
        if speeds is not None:
            codec = codec_for(speeds, len(refs), job.codec)
            found.append(codec)
            store_bytes = len(refs) * (speeds.raw_bytes if codec.value == "raw" else speeds.encoded_bytes)
    return found + ([] if sized else [shards_for(store_bytes)])


def _speeds(paths: Sequence[str], job: SplitJob, refs: RefTable) -> Speeds | None:
    images, pixels = list[bytes](), list[int]()
    for ref in some_refs(job, Plan(job.count, job.recipe.seed, _FOR_SPEED).refs(0)):
        with suppress(SampleError):
            sample = stored_sample(job, open_sample(job, ref))
            images.append(bytes(sample.blobs[0]))
            height, width = sample.facts.size
            pixels.append(height * width * (1 if job.recipe.gray else 3) * (job.recipe.bits // 8))
    if not images:
        return None
    return Speeds(
        encoded_bytes=sum(map(len, images)) / len(images),
        raw_bytes=sum(pixels) / len(pixels),
        decoded=decode_rate(images, job.codec, 0.4),
        disk=disk_rate(_files(paths, refs, job.recipe.seed), 1.0),
        copied=copy_rate(),
        room=free_memory() // 2,
    )


def _files(paths: Sequence[str], refs: RefTable, seed: int) -> list[Path]:
    """Some of the source's files, or its archives."""
    drawn, found = np.random.default_rng(seed).permutation(len(refs))[:_FILES], dict[Path, None]()
    for ref in refs.some(np.sort(drawn).astype(np.int64)):
        root = Path(paths[ref.source]) if ref.source < len(paths) else Path()
        path = os.fsencode(ref.name)[ref.prefix :]
        inside = path[: ref.outer] if ref.offset >= 0 else path
        file = root / os.fsdecode(inside) if inside else root
        if file.is_file():
            found[file] = None
    return list(found)


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
