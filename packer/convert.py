"""A build, from top to bottom: scan, plan, units in parallel, shards, columns and manifest, publish."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from packer.drive import Drive, Watcher
from packer.output.card import CARD, card_text
from packer.output.finish import StoreFacts, finish_store
from packer.output.journal import Journal
from packer.output.publish import check_absent_or_ours, check_target, publish
from packer.output.staging import Staging
from packer.recipe import choose_codec
from packer.report import make_report
from packer.runners import RUNNERS, make_runner, stop_runner
from packer.sinks.base import StoreTarget
from packer.sinks.tar import TarSink
from packer.sources.detect import detect
from packer.sources.refs import RefTable, RefWriter
from packer.split import divide
from packer.unit import SplitJob
from packer_reader.errors import PackerError, SourceError, UsageError, os_error
from packer_reader.format.names import DEFAULT_PREFIX
from packer_reader.machine import usable_cpus

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from packer.recipe import Recipe
    from packer.report import Report
    from packer.sinks.base import Sink
    from packer.sources.base import Listing, Source
    from packer.split import Split
    from packer_reader.format.manifest import Manifest

__all__ = ["Job", "build"]


class _Silent:
    """A watcher that draws nothing."""

    def begin(self, what: str, total: int) -> None:
        """Nothing."""

    def advance(self, samples: int, source_bytes: int, skipped: int) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """How a build is run; none of it shows in the bytes."""

    workers: int | None = None
    """Processes; None takes what this job may use of the machine."""
    runner: str = "processes"
    source_type: str | None = None
    """None detects it."""
    resume: bool = True
    """Go on with an interrupted build of the same recipe and source."""
    overwrite: bool = False
    """Replace a store that we wrote."""
    stop_on_error: bool = False
    """Fail at the first sample that cannot be converted."""
    watcher: Watcher = field(default_factory=_Silent)

    def __post_init__(self) -> None:
        if self.workers is not None and not 1 <= self.workers <= 1024:
            raise UsageError(f"--workers is {self.workers!r}, it must be a whole number from 1 to 1024")
        if self.runner not in RUNNERS:
            raise UsageError(f"--runner is {self.runner!r}, it must be one of {', '.join(RUNNERS)}")


def build(source: str, target: str, recipe: Recipe, job: Job | None = None) -> Report:
    """Convert a source into a store, or into a folder of one store per split.

    Args:
        source: the raw data.
        target: the store to make; a folder. Absent, or replaced with `job.overwrite`.
        recipe: what to make.
        job: how to run it.

    Raises:
        PackerError: any failure; an interrupted build can be resumed by the same call.
    """
    job = job or Job()
    started = time.monotonic()
    # Links are resolved once, so that staging lies beside what is really replaced.
    out = Path(os.path.realpath(target))
    origin = detect(source, job.source_type)
    check_target(out, Path(source), overwrite=job.overwrite)
    with Staging(out, resume=job.resume) as staging:
        try:
            check_absent_or_ours(out, overwrite=job.overwrite)
            manifests, workers = _build(origin, staging, recipe, job)
            publish(staging, out, overwrite=job.overwrite)
        except OSError as error:
            raise os_error(error, "writing", error.filename or staging.path) from error
        staging.published = True
    return make_report(target, manifests, workers, time.monotonic() - started)


def _build(source: Source, staging: Staging, recipe: Recipe, job: Job) -> tuple[list[Manifest], int]:
    staging.refs.mkdir(exist_ok=True)
    job.watcher.begin("scanning", 0)
    with RefWriter(staging.refs) as refs:
        listing = source.scan(refs)
    for notice in [*listing.notices, *_left_out(listing)]:
        job.watcher.say(notice)
    if job.stop_on_error and listing.problems:
        first = listing.problems[0]
        raise SourceError(
            f"{first.name!r}: {first.reason}: repair or remove it, or leave out --on-error stop to skip it"
        )
    versions = _versions(recipe)
    staging.agree({"recipe": recipe.to_json(), "listing": listing.digest, "versions": versions})
    splits = divide(recipe, listing, RefTable(staging.refs))
    units = sum(-(-split.count // recipe.unit) for split in splits)
    workers = max(1, min(job.workers or usable_cpus(), units))
    executor = make_runner(job.runner, workers)
    manifests = []
    try:
        job.watcher.begin("converting", sum(split.count for split in splits))
        for split in splits:
            target = _target(staging, source, recipe, listing, split)
            manifests.append(_convert_split(target, split, listing, versions, (executor, workers, job)))
    except BaseException:
        stop_runner(executor)
        raise
    executor.shutdown()
    if splits[0].name and recipe.container == "tar":
        (staging.store / CARD).write_text(card_text([m.split for m in manifests if m.split]), encoding="ascii")
    return manifests, workers


def _left_out(listing: Listing) -> list[str]:
    """What has no extension of an image, in words."""
    if not listing.ignored:
        return []
    kinds = ", ".join(f"{count} {suffix or 'without one'}" for suffix, count in listing.ignored.most_common(5))
    return [f"{listing.ignored.total()} files were left out for their extension: {kinds}"]


def _target(staging: Staging, source: Source, recipe: Recipe, listing: Listing, split: Split) -> StoreTarget:
    folder = staging.store / split.name if split.name else staging.store
    folder.mkdir(parents=True, exist_ok=True)
    work = staging.work(split.name)
    work.mkdir(parents=True, exist_ok=True)
    members = None
    if split.members is not None:
        members = work / "members.bin"
        split.members.tofile(members)
    codec = choose_codec(recipe, listing.suffixes)
    job = SplitJob(recipe, source, staging.refs, members, split.count, codec, listing.classes, work)
    return StoreTarget(job, folder, split.name or DEFAULT_PREFIX)


def _convert_split(
    target: StoreTarget, split: Split, listing: Listing, versions: dict[str, str], run: tuple[Executor, int, Job]
) -> Manifest:
    executor, workers, job = run
    journal = Journal(target.job.work / "journal.jsonl").load()
    sink = _sink(target)
    shards = Drive(target.job, sink, journal, executor, job.watcher, workers, job.stop_on_error).run()
    ended = sink.finish()
    if ended.get("oversized"):
        job.watcher.say(f"{ended['oversized']} samples are larger than --size and have a shard of their own")
    facts = StoreFacts(target, split.name, listing, split.problems, versions, ended.get("records"))
    manifest = finish_store(facts, journal, shards)
    if manifest.counts["found"] != split.count + len(split.problems):
        raise PackerError(
            f"{manifest.counts['found']} samples were accounted for instead of "
            f"{split.count + len(split.problems)}: please report this; no store was written"
        )
    return manifest


def _sink(target: StoreTarget) -> Sink:
    if target.job.recipe.container == "tar":
        return TarSink(target)
    from packer.sinks.lmdb import LmdbSink  # noqa: PLC0415 - only LMDB stores need lmdb

    return LmdbSink(target)


def _versions(recipe: Recipe) -> dict[str, str]:
    """Of everything that shapes bytes."""
    packages = ["numpy", "opencv-python", "opencv-python-headless", "packer-data", "pillow", "simplejpeg", "torch"]
    found = {name: _version(name) for name in packages + (["lmdb"] if recipe.container == "lmdb" else [])}
    return {name: text for name, text in found.items() if text} | {"machine": platform.machine()}


def _version(package: str) -> str:
    try:
        return version(package)
    except ModuleNotFoundError:
        return ""
