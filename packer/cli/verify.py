"""`packer verify`."""

from __future__ import annotations

import json

import click

from packer.cli.options import output_options
from packer_reader.errors import StoreError

__all__ = ["verify"]


@click.command()
@click.argument("store")
@click.option("--full", is_flag=True, help="Hash every file, and compare and decode every field.")
@output_options
@click.pass_context
def verify(ctx: click.Context, /, store: str, *, full: bool, as_json: bool, quiet: bool) -> None:
    """Compare STORE with its manifest; exit code 4 when it is damaged.

    Structure, sizes and the hashes of small files are always compared; --full reads everything.

    \b
    Example:
      packer verify out.lmdb --full
    """
    from pathlib import Path

    from packer.cli.progress import Progress
    from packer_reader.check import SKIPPED, check_store
    from packer_reader.stores.open import store_folders

    progress, found = Progress(quiet=quiet or as_json), []
    for folder in store_folders(Path(store)):
        progress.begin("verifying", _samples(folder) if full else 0)
        for finding in check_store(folder, full=full, progress=lambda samples: progress.advance(samples, 0, 0)):
            found.append(finding.to_json(folder))
            if not as_json:
                click.echo(f"{folder}/{finding}")
    progress.close()
    if as_json:
        click.echo(json.dumps({"ok": not found, "full": full, "findings": found}))
    elif not found:
        click.echo(f"{store}: no damage found" + ("" if full else f" ({SKIPPED})"))
    if found:
        ctx.exit(StoreError.exit_code)


def _samples(folder: object) -> int:
    from packer_reader.stores.open import open_store

    try:
        return len(open_store(str(folder)))
    except StoreError:
        return 0
