"""`packer export`."""

from __future__ import annotations

import json
from typing import Any

import click

from packer.cli.options import output_options
from packer.cli.progress import counting

__all__ = ["export"]


@click.command()
@click.argument("store")
@click.option("--to", "form", required=True, metavar="megatron|bin", help="Megatron's .bin and .idx, or one flat file.")
@click.option("-o", "--output", required=True, metavar="FILE", help="The file; of megatron without .bin and .idx.")
@click.option("--split", metavar="NAME", help="Which store of a folder of splits.")
@output_options
def export(store: str, form: Any, output: str, split: str | None, *, as_json: bool, quiet: bool) -> None:
    """Write the tokens of STORE for other trainers, documents in stored order, without padding.

    \b
    Example:
      packer export corpus/ --to megatron -o corpus_text_document
    """
    from packer.tokens.export import export_tokens
    from packer_reader.stores.open import open_store

    opened = open_store(store, split)
    with counting("writing", len(opened), quiet=quiet or as_json) as heard:
        files, documents, tokens = export_tokens(opened, output, form, heard)
    if as_json:
        click.echo(json.dumps({"files": files, "documents": documents, "tokens": tokens}))
    else:
        click.echo(f"{', '.join(files)}: {documents:,} documents, {tokens:,} tokens")
