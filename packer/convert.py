"""A build, from top to bottom: scan, plan, units in parallel, shards, columns and manifest, publish."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.drive import Drive, Lane
from packer.fields import check_fields, stored_as
from packer.gather import gather, gathers
from packer.job import Job
from packer.output.card import CARD, card_text
from packer.output.finish import StoreFacts, finish_store
from packer.output.journal import Journal
from packer.output.publish import check_absent_or_ours, check_target, check_tmp, publish
from packer.output.staging import Staging
from packer.recipe import Recipe, choose_codec, several_sizes, size_name
from packer.report import Run, make_report
from packer.resources import Room, crew, fitted, wait_for_workers
from packer.reuse import MadeBy, plan_reuse
from packer.runners import SerialRunner, stop_runner
from packer.scan import scan
from packer.sinks.base import StoreTarget
from packer.sinks.tar import TarSink
from packer.sources.base import Spooling
from packer.sources.classes import known_classes
from packer.sources.dataset import PythonDataset, wrap_dataset
from packer.sources.detect import detect
from packer.sources.refs import SPOOL, RefTable
from packer.sources.store import Stores
from packer.sources.text import Documents
from packer.split import divide
from packer.tokens.window import of_text, with_unit
from packer.unit import SplitJob
from packer.versions import versions_of
from packer_reader.errors import PackerError, UsageError, os_error
from packer_reader.format.names import DEFAULT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Executor

    from packer.report import Report
    from packer.reuse import Reuse
    from packer.sinks.base import Sink
    from packer.sources.base import Listing, Source
    from packer.split import Split
    from packer_reader.format.manifest import Manifest

__all__ = ["build", "write"]

_WHOLE_SAMPLES = ("sidecars", "store", "webdataset")
"""Source types whose samples are more than an image file and a label that listing knows."""


def build(
    source: str | Sequence[str], target: str, recipe: Recipe | Sequence[Recipe], job: Job | None = None
) -> Report:
    """Convert a source into a store, or into a folder of one store per split and size.

    Args:
        source: the raw data, or several that are laid over each other.
        target: the store to make; a folder. Absent, or replaced with `job.overwrite`.
        recipe: what to make; several that differ in `resize` alone make a store of each size, decoding once.
        job: how to run it.

    Raises:
        PackerError: any failure; an interrupted build can be resumed by the same call.
    """
    job = job or Job()
    paths = [source] if isinstance(source, str) else list(source)
    known = known_classes(job.classes) if job.classes else ()
    text = (recipe if isinstance(recipe, Recipe) else recipe[0]).text if recipe else None
    origin = detect(paths, job.source_type, known, job.fields, text)
    return _make(origin, paths, target, recipe, job)


def write(
    dataset: Any,
    out: str,
    *,
    fields: Mapping[str, Any] | None = None,
    classes: Sequence[str] = (),
    workers: int | None = None,
    recipe: Recipe | Sequence[Recipe] | None = None,
    job: Job | None = None,
) -> Report:
    """Convert a map-style data set (torch, Hugging Face, a list) into a store.

    Args:
        dataset: with `len` and `[i]`; it is pickled for the workers.
        out: the store to make; LMDB if it ends in `.lmdb`.
        fields: store field to key or number in a sample, such as `{"image": "img", "label": "fine_label"}`; `image` and
            `label`, or the parts of a tuple, when left out.
        classes: class names by index; the data set's own when left out.
        workers: processes; what this job may use when left out.
        recipe: what to make; pictures as they are when left out.
        job: how to run it.

    Raises:
        PackerError: any failure.

    Example:
        packer.write(torchvision.datasets.CIFAR10("data"), "cifar.lmdb", workers=8)
    """
    job = job or Job()
    if workers is not None:
        job = replace(job, workers=workers)
    known = known_classes(job.classes) if job.classes else ()
    return _make(wrap_dataset(dataset, fields, classes, known), [], str(out), recipe or Recipe(), job)


def _make(origin: Source, paths: list[str], target: str, recipe: Recipe | Sequence[Recipe], job: Job) -> Report:
    recipes = several_sizes([recipe] if isinstance(recipe, Recipe) else list(recipe))
    if isinstance(origin, Documents):
        recipes = [of_text(recipes, origin.text)]
    elif recipes[0].text is not None:
        raise UsageError(f"options about text are given, and the source is {origin.type}: leave them out")
    if target.rstrip("/").endswith(".lmdb"):
        recipes = [replace(each, container="lmdb") for each in recipes]
    # Links are resolved once, so that staging lies beside what is really replaced.
    out, run = Path(os.path.realpath(target)), Run()
    check_target(out, [Path(path) for path in paths], overwrite=job.overwrite)
    if job.tmp:
        check_tmp(Path(job.tmp), [Path(path) for path in paths])
    with Staging(out, resume=job.resume, tmp=Path(job.tmp) if job.tmp else None) as staging:
        try:
            check_absent_or_ours(out, overwrite=job.overwrite)
            stores = _build(origin, staging, fitted(recipes, job), job, run)
            publish(staging, out, overwrite=job.overwrite)
        except OSError as error:
            raise os_error(error, "writing", error.filename or staging.path) from error
        staging.published = True
    run.ended("finish")
    return make_report(target, stores, run)


@dataclass(frozen=True)
class _Build:
    """What all stores of one build have in common."""

    job: Job
    run: Run
    staging: Staging
    source: Source
    listing: Listing
    refs: RefTable
    recipes: list[Recipe]
    """One per size."""
    versions: Mapping[str, str]
    reuses: dict[str, Reuse] = field(default_factory=dict)
    """By size, what can be copied from an earlier store."""


def _build(source: Source, staging: Staging, recipes: list[Recipe], job: Job, run: Run) -> dict[str, list[Manifest]]:
    """Every store of the build, whole but not published; their manifests by size."""
    source, listing = _listed(source, staging, recipes[0], job)
    recipes = [with_unit(recipe, listing.bytes, listing.found) for recipe in recipes]
    whole = _Build(job, run, staging, source, listing, RefTable(staging.refs), recipes, versions_of(recipes[0]))
    run.ended("scan")
    if recipes[0].text is None:
        codec = choose_codec(recipes[0], listing.suffixes)
        check_fields(listing.extras, codec, labelled=listing.labelled, meta=recipes[0].meta)
    asked = [recipe.to_json() for recipe in recipes]
    staging.agree(
        {
            "recipe": asked[0] if len(asked) == 1 else asked,
            "listing": listing.digest,
            "classes": listing.classes,
            "fields": [[extra.name, extra.kind, extra.dtype] for extra in listing.extras],
            "versions": whole.versions,
        }
    )
    _plan_reuse(whole)
    splits = divide(recipes[0], listing, whole.refs)
    if job.gather is not None and not isinstance(source, Documents):
        raise UsageError(f"--gather is about text, and the source is {listing.type}: leave it out")
    if isinstance(source, Documents) and gathers(job, source, staging.refs, listing.bytes, recipes[0]):
        whole = replace(whole, source=gather(job, source, staging.refs, splits, recipes[0]))
    executor, run.workers = crew(job, recipes[0], whole.refs, resumed=staging.resumable or staging.cut_off)
    room = Room(len(whole.refs), staging.store, run.workers)
    stores: dict[str, list[Manifest]] = {size_name(recipe.resize): [] for recipe in recipes}
    try:
        if isinstance(source, PythonDataset) and not isinstance(executor, SerialRunner):
            source.check_sendable()
        wait_for_workers(executor, run.workers)
        run.ended("start")
        job.watcher.begin("converting", sum(split.count for split in splits))
        for split in splits:
            for found, manifest in zip(stores.values(), _convert_split(whole, split, executor, room), strict=True):
                found.append(manifest)
    except BaseException:
        stop_runner(executor)
        raise
    executor.shutdown()
    if splits[0].name and recipes[0].container == "tar":
        for folder in [staging.store / name for name in stores] if len(stores) > 1 else [staging.store]:
            (folder / CARD).write_text(card_text([split.name for split in splits if split.name]), encoding="ascii")
    return stores


def _listed(source: Source, staging: Staging, recipe: Recipe, job: Job) -> tuple[Source, Listing]:
    """A source's listing, and the source as workers get it."""
    if isinstance(source, PythonDataset):
        source = source.stored_at(staging.path / "dataset.pickle")
    listing = scan(source, staging.refs, job)
    if isinstance(source, Stores):
        source.check(recipe)
    return (source.spooled_at(staging.refs / SPOOL) if isinstance(source, Spooling) else source), listing


def _plan_reuse(whole: _Build) -> None:
    """Find what can be copied from an earlier store, if one is given."""
    earlier, listing = whole.job.reuse, whole.listing
    if earlier is None:
        return
    if listing.type == "text":
        raise UsageError("--reuse copies images, and the source is text: leave it out")
    if listing.extras or listing.type in _WHOLE_SAMPLES:
        names = ", ".join(extra.name for extra in listing.extras) or "labels in files of their own"
        raise UsageError(f"--reuse copies images and labels, this source has other fields ({names}): leave it out")
    for recipe in whole.recipes:
        made = MadeBy(recipe, choose_codec(recipe, listing.suffixes), whole.versions)
        name = size_name(recipe.resize)
        whole.reuses[name] = plan_reuse(earlier, made, whole.refs, whole.staging.path / f"reuse-{name}.bin")


def _convert_split(whole: _Build, split: Split, executor: Executor, room: Room) -> list[Manifest]:
    run, job = whole.run, whole.job
    targets = [_target(whole, split, recipe) for recipe in whole.recipes]
    lanes = [Lane(target.job, _sink(target), Journal(target.job.work / "journal.jsonl").load()) for target in targets]
    room.jobs = [target.job for target in targets]
    shards = Drive(lanes, executor, job.watcher, run.workers, job.stop_on_error, room).run()
    run.reused += sum(done.reused for done in lanes[0].journal.units.values())
    run.ended("convert")
    manifests = []
    for target, lane, done in zip(targets, lanes, shards, strict=True):
        ended = lane.sink.finish()
        if ended.get("oversized"):
            job.watcher.say(f"{ended['oversized']} samples are larger than --size and have a shard of their own")
        facts = StoreFacts(target, split.name, whole.listing, split.problems, whole.versions, ended.get("records"))
        manifest = finish_store(facts, lane.journal, done)
        if manifest.counts["found"] != split.count + len(split.problems):
            raise PackerError(
                f"{manifest.counts['found']} samples were accounted for instead of "
                f"{split.count + len(split.problems)}: please report this; no store was written"
            )
        manifests.append(manifest)
    run.ended("finish")
    return manifests


def _target(whole: _Build, split: Split, recipe: Recipe) -> StoreTarget:
    """Where one store grows, and what its workers need to know."""
    staging, listing = whole.staging, whole.listing
    name = "/".join(filter(None, (size_name(recipe.resize) if len(whole.recipes) > 1 else "", split.name)))
    folder = staging.store / name
    folder.mkdir(parents=True, exist_ok=True)
    work = staging.work(name)
    members = None
    if split.members is not None:
        members = work / "members.bin"
        split.members.tofile(members)
    job = SplitJob(
        recipe=recipe,
        source=whole.source,
        refs=staging.refs,
        members=members,
        count=split.count,
        codec=choose_codec(recipe, listing.suffixes),
        classes=listing.classes,
        work=work,
        units=staging.units(name),
        labelled=listing.labelled,
        extras=stored_as(listing.extras, choose_codec(recipe, listing.suffixes)),
        reuse=whole.reuses.get(size_name(recipe.resize)),
    )
    return StoreTarget(job, folder, split.name or DEFAULT_PREFIX)


def _sink(target: StoreTarget) -> Sink:
    if target.job.recipe.container == "tar":
        return TarSink(target)
    from packer.sinks.lmdb import LmdbSink  # noqa: PLC0415 - only LMDB stores need lmdb

    return LmdbSink(target)
