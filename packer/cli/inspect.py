"""`packer inspect`."""

from __future__ import annotations

import json

import click

from packer.cli.options import output_options

__all__ = ["inspect"]


@click.command()
@click.argument("store")
@click.option("--split", help="Which split, where STORE holds several.")
@click.option("--sample", metavar="ID|NAME", help="One sample, by number or by the name of its source file.")
@output_options
def inspect(store: str, split: str | None, sample: str | None, *, as_json: bool, quiet: bool) -> None:  # noqa: ARG001
    """Print what STORE holds: fields, classes, statistics, what was skipped.

    \b
    Example:
      packer inspect out.lmdb
      packer inspect out.lmdb --sample n0001/img_000001.JPEG
    """
    from pathlib import Path

    from packer_reader.stores.open import open_store, store_folders
    from packer_reader.summary import describe, describe_sample, find_sample, sample_lines, summary_lines

    if sample is not None:
        opened = open_store(store, split)
        number = find_sample(opened, sample)
        click.echo(json.dumps(describe_sample(opened, number)) if as_json else "\n".join(sample_lines(opened, number)))
        return
    folders = store_folders(Path(store)) if split is None else [open_store(store, split).path]
    stores = [open_store(folder) for folder in folders]
    if as_json:
        found = [describe(opened) for opened in stores]
        click.echo(json.dumps(found[0] if len(found) == 1 else {"stores": found}))
    else:
        click.echo("\n\n".join("\n".join(summary_lines(opened)) for opened in stores))
