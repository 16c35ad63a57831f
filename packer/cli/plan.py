"""`packer plan`."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packer.cli.build import shards_beside
from packer.cli.given import typed
from packer.cli.headings import HeadedCommand, HeadedOption
from packer.cli.options import make_recipes, output_options, recipe_options
from packer.cli.progress import Progress
from packer.sources import PYTHON

if TYPE_CHECKING:
    from packer.preview.suggest import Suggestion

__all__ = ["plan"]


class _Unsaid(Progress):
    """Notices are part of the plan."""

    def say(self, text: str) -> None:
        """Nothing."""


@click.command(cls=HeadedCommand)
@click.argument("sources", nargs=-1, metavar="[SOURCE...]")
@recipe_options
@click.option("--size", cls=HeadedOption, heading="Store", default="256MB", show_default=True, help="Largest shard.")
@click.option("--workers", cls=HeadedOption, heading="Running", type=int, metavar="N", help="Processes to plan for.")
@click.option(
    "--look",
    cls=HeadedOption,
    heading="Running",
    type=float,
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to look for copies and odd sizes; inf for all.",
)
@output_options
def plan(
    sources: tuple[str, ...],
    size: str,
    *,
    workers: int | None,
    look: float,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Say what would be built from SOURCE (this folder), and write nothing.

    Lists what the source was taken for and why, samples per class and split, sizes, problems, copies and what stands in
    two splits; an estimate of size, disk, memory and time from a few samples converted in memory; and what size, codec
    and shards this suggests, with the command to paste.

    \b
    Example:
      packer plan imagefolder/ --resize 256 --fit crop
    """
    from packer.job import Job
    from packer.preview.preview import preview

    if not look >= 0:
        raise click.UsageError(f"--look is {look}, it must be seconds from 0 on, or inf")
    progress = _Unsaid(quiet=quiet or as_json)
    paths = list(sources) or ([] if (options["source_type"] or "").startswith(PYTHON) else ["."])
    job = Job(
        workers=workers,
        runner="serial",
        source_type=options["source_type"],
        fields=options["fields"],
        classes=options["classes"],
        watcher=progress,
    )
    given = typed(_OWN)
    try:
        found = preview(paths, make_recipes("tar", size, options), job, look=look, sized="--size" in given)
    finally:
        progress.close()
    if found.estimate:  # or nothing can be converted
        found = replace(found, command=_command(paths, given, found.suggestions))
    click.echo(json.dumps(found.to_json()) if as_json else "\n".join(found.lines()))


_OWN = frozenset({"look", "workers", "as_json", "quiet"})
"""Options that say nothing of what would be built."""


def _command(paths: list[str], given: list[str], suggestions: list[Suggestion]) -> str:
    """The build with all that was given and is suggested."""
    beside = shards_beside(paths[0]) if paths else Path("data-shards")
    out = str(beside) if paths and Path(paths[0]).is_absolute() else os.path.relpath(beside)
    out = f"./{out}" if out.startswith("-") else out
    more = [
        word
        for one in suggestions
        if (one.option, one.value) != ("--encode", "keep")
        for word in (one.option, one.value)
    ]
    ends = ["--"] if any(path.startswith("-") for path in paths) else []
    return shlex.join(["packer", "shard", *given, *more, *ends, *paths, out])
