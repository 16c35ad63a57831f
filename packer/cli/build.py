"""`packer build` and `packer shard`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packer.cli.headings import HeadedCommand, HeadedOption
from packer.cli.options import job_options, make_recipes, output_options, parse_max_errors, recipe_options
from packer.sources import PYTHON
from packer_reader.errors import UsageError

if TYPE_CHECKING:
    from packer.report import Report

__all__ = ["build", "shard", "shards_beside"]

_SKIPPED = 3
"""Exit code: the store is complete, but more samples were skipped than --max-errors allows."""


@click.command(cls=HeadedCommand)
@click.argument("sources", nargs=-1, metavar="SOURCE...")
@click.argument("target", metavar="OUT")
@recipe_options
@click.option(
    "--size", cls=HeadedOption, heading="Store", default="256MB", show_default=True, help="Largest shard; not for LMDB."
)
@job_options
@output_options
@click.pass_context
def build(ctx: click.Context, /, sources: tuple[str, ...], target: str, size: str, **options: Any) -> None:
    """Convert SOURCE into a store: LMDB if OUT ends in .lmdb, tar shards otherwise.

    A source is a folder, or a .tar or .zip archive; several are laid over each other. With splits, from folders train/
    val/ test/ or from --val, OUT holds one store for each.

    \b
    Example:
      packer build imagefolder/ out.lmdb --resize 256 --fit crop
      packer build photos/ photos-256/ --resize 256 --val 0.05 --group-by '^([^/]+)/'
      packer build photos/ more-photos.tar new.lmdb --resize 256 --reuse out.lmdb --classes out.lmdb
    """
    explicit = ctx.get_parameter_source("size") is not click.core.ParameterSource.DEFAULT
    if explicit and target.rstrip("/").endswith(".lmdb"):
        raise UsageError(f"--size is {size!r}, but an LMDB store has no shards: leave it out")
    _run(ctx, list(sources), target, size, options)


@click.command(cls=HeadedCommand)
@click.argument("places", nargs=-1, metavar="[SOURCE... [OUT]]")
@recipe_options
@click.option(
    "--size",
    cls=HeadedOption,
    heading="Store",
    default="256MB",
    show_default=True,
    help="Largest shard: B, KB, MB, GB, KiB, MiB, GiB.",
)
@job_options
@output_options
@click.pass_context
def shard(ctx: click.Context, /, places: tuple[str, ...], size: str, **options: Any) -> None:
    """Convert SOURCE (this folder) into tar shards in OUT (../<its name>-shards).

    Of several paths the last one is OUT.

    The shards are plain WebDataset shards: webdataset, Hugging Face datasets and tar read them.

    \b
    Example:
      cd imagefolder && packer shard --size 256MB
      packer shard imagefolder/ out/ --resize 256 --fit crop --size 64MB
    """
    *sources, target = places if len(places) > 1 else [*places, ""]
    if not target and (options["source_type"] or "").startswith(PYTHON):
        sources, target = [], "".join(sources)
    elif not target:
        sources = sources or ["."]
        target = str(shards_beside(sources[0]))
    if not target:
        raise UsageError("no output is given: name the folder to write")
    if target.rstrip("/").endswith(".lmdb"):
        raise UsageError(f"OUT is {target!r}, but shard writes tar shards: use packer build for LMDB, or another name")
    _run(ctx, sources, target, size, options)


def shards_beside(source: str) -> Path:
    """Where `packer shard` writes when it is not told: beside the source."""
    place = Path(source).resolve()
    return place.parent / f"{place.stem if place.is_file() else place.name}-shards"


def _run(ctx: click.Context, sources: list[str], target: str, size: str, options: dict[str, Any]) -> None:
    recipes = make_recipes("lmdb" if target.rstrip("/").endswith(".lmdb") else "tar", size, options)
    parse_max_errors(options["max_errors"], 0)

    from packer.cli.progress import Progress
    from packer.convert import build as convert
    from packer.job import Job

    progress = Progress(quiet=options["quiet"] or options["as_json"])
    job = Job(
        **{name: options[name] for name in ("workers", "runner", "source_type", "fields", "classes", "reuse", "tmp")},
        gather=options["gather"],
        resume=not options["no_resume"],
        overwrite=options["overwrite"],
        stop_on_error=options["on_error"] == "stop",
        watcher=progress,
    )
    try:
        report = convert(sources, target, recipes, job)
    finally:
        progress.close()
    if options["as_json"]:
        click.echo(json.dumps(report.to_json()))
    else:
        for line in _lines(report):
            click.echo(line)
    if report.skipped > parse_max_errors(options["max_errors"], report.found):
        if not options["as_json"]:
            click.echo(
                f"{report.skipped:,} samples were skipped: see errors.jsonl in the store, and --max-errors", err=True
            )
        ctx.exit(_SKIPPED)


def _lines(report: Report) -> list[str]:
    from packer.recipe import size_name
    from packer_reader.format.names import shard_file
    from packer_reader.sizes import format_bytes

    rate = report.written / max(report.seconds, 1e-9)
    lines = [
        (
            f"{report.store}: {report.samples:,} samples, {format_bytes(report.bytes)}, {report.seconds:.1f} s "
            f"({rate:,.0f} samples/s, {report.workers} workers)"
        ),
        f"found {report.found:,} = written {report.written:,} + skipped {report.skipped:,}",
    ]
    lines += [f"skipped {count:,} {failure}" for failure, count in sorted(report.errors.items())]
    lines += [
        f"re-encoded {count:,} {codecs.replace('>', ' to ')}" for codecs, count in sorted(report.reencoded.items())
    ]
    if report.reused:
        lines.append(f"copied {report.reused:,} unchanged samples")
    for manifest in report.manifests:
        size = size_name(manifest.recipe["resize"]) if report.sizes else ""
        parts = (report.store.rstrip("/"), size, manifest.split)
        place = "/".join(part for part in parts if part)
        if manifest.kind == "lmdb":
            lines.append(f"{place}/data.mdb  {manifest.samples:,} samples in {manifest.records:,} records")
            continue
        first, last = (shard_file(manifest.prefix, n) for n in (0, manifest.shards - 1))
        start, end = (name.removeprefix(f"{manifest.prefix}-").removesuffix(".tar") for name in (first, last))
        pattern = first if manifest.shards == 1 else f"{manifest.prefix}-{{{start}..{end}}}.tar"
        lines.append(f"{place}/{pattern}  {manifest.samples:,} samples in {manifest.shards:,} shards")
    return lines
