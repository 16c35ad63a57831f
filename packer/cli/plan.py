"""`packer plan`."""

from __future__ import annotations

import json
from typing import Any

import click

from packer.cli.headings import HeadedCommand, HeadedOption
from packer.cli.options import make_recipes, output_options, recipe_options
from packer.sources import PYTHON

__all__ = ["plan"]


@click.command(cls=HeadedCommand)
@click.argument("sources", nargs=-1, metavar="[SOURCE...]")
@recipe_options
@click.option("--size", cls=HeadedOption, heading="Store", default="256MB", show_default=True, help="Largest shard.")
@click.option("--workers", cls=HeadedOption, heading="Running", type=int, metavar="N", help="Processes to plan for.")
@output_options
def plan(
    sources: tuple[str, ...],
    size: str,
    *,
    workers: int | None,
    as_json: bool,
    quiet: bool,  # noqa: ARG001
    **options: Any,
) -> None:
    """Say what would be built from SOURCE, and write nothing.

    Lists what the source was taken for and why, samples per class and split, problems, and an estimate of size, disk,
    memory and time from a few samples converted in memory.

    \b
    Example:
      packer plan imagefolder/ --resize 256 --fit crop
    """
    from packer.job import Job
    from packer.preview import preview

    paths = list(sources) or ([] if (options["source_type"] or "").startswith(PYTHON) else ["."])
    job = Job(
        workers=workers,
        runner="serial",
        source_type=options["source_type"],
        fields=options["fields"],
        classes=options["classes"],
    )
    found = preview(paths, make_recipes("tar", size, options), job)
    click.echo(json.dumps(found.to_json()) if as_json else "\n".join(found.lines()))
