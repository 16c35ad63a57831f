"""`packer inspect`."""

from __future__ import annotations

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
    from packer_reader.summary import inspect_text

    click.echo(inspect_text(store, split, sample, as_json=as_json))
