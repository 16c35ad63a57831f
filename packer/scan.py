"""Listing a source: its refs into column files, and what a user should hear of it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from packer.runners import warm_up
from packer.sources.refs import RefWriter, tell_apart
from packer_reader.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from packer.job import Job
    from packer.sources.base import Listing, Source

__all__ = ["SMALL", "scan"]

SMALL = 500
"""Samples below which a build runs in this process, rather than wait for workers to load."""


def scan(source: Source, folder: Path, job: Job) -> Listing:
    """List a source.

    Args:
        source: the raw data.
        folder: of the ref columns; made anew.
        job: its watcher hears what the user should know; its workers begin to load when there will be some.

    Raises:
        SourceError: it cannot be listed, or with `stop_on_error` has a problem.
    """
    shutil.rmtree(folder, ignore_errors=True)  # an earlier run may have left all of its text here
    folder.mkdir()
    job.watcher.begin("scanning", 0)
    listing = _list(source, folder, job)
    if len(source.prefixes) > 1:
        renamed = tell_apart(folder, source.prefixes)
        if renamed:
            job.watcher.say(
                f"{renamed} names are those of files of an earlier source too: they begin with their source's"
            )
    for notice in [*listing.notices, *_left_out(listing)]:
        job.watcher.say(notice)
    if job.stop_on_error and listing.problems:
        first = listing.problems[0]
        raise SourceError(
            f"{first.name!r}: {first.reason}: repair or remove it, or leave out --on-error stop to skip it"
        )
    return listing


def _list(source: Source, folder: Path, job: Job) -> Listing:
    told = 0

    def heard(count: int) -> None:
        nonlocal told
        if count >= SMALL > told:
            warm_up(job.runner)  # the workers' libraries load while the scan goes on
        job.watcher.advance(count - told, 0, 0)
        told = count

    with RefWriter(folder, heard) as refs:
        return source.scan(refs)


def _left_out(listing: Listing) -> list[str]:
    """What has no extension of an image, in words."""
    if not listing.ignored:
        return []
    kinds = ", ".join(f"{count} {suffix or 'without one'}" for suffix, count in listing.ignored.most_common(5))
    return [f"{listing.ignored.total()} files were left out for their extension: {kinds}"]
