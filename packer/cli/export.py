"""`packer export`."""

from __future__ import annotations

import json
from typing import Any

import click

__all__ = ["export"]


@click.command()
@click.argument("store")
@click.option("--to", "form", required=True, metavar="megatron|bin", help="Megatron's .bin and .idx, or one flat file.")
@click.option("-o", "--output", required=True, metavar="FILE", help="The file; of megatron without .bin and .idx.")
@click.option("--split", metavar="NAME", help="Which store of a folder of splits.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else.")
def export(store: str, form: Any, output: str, split: str | None, as_json: bool) -> None:
    """Write the tokens of STORE for other trainers, documents in stored order, without padding.

    \b
    Example:
      packer export corpus/ --to megatron -o corpus_text_document
    """
    from packer.tokens.export import export_tokens
    from packer_reader.stores.open import open_store

    files, documents, tokens = export_tokens(open_store(store, split), output, form)
    if as_json:
        click.echo(json.dumps({"files": files, "documents": documents, "tokens": tokens}))
    else:
        click.echo(f"{', '.join(files)}: {documents:,} documents, {tokens:,} tokens")
