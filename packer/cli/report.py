"""`packer report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from packer.cli.options import output_options
from packer.cli.progress import counting

__all__ = ["report"]


@click.command()
@click.argument("store")
@click.option("-o", "out", required=True, metavar="FILE", help="The page to write, such as report.html.")
@click.option("--split", help="Which split, where STORE holds several; all when left out.")
@click.option("--samples", type=int, default=16, show_default=True, metavar="N", help="To draw; 0 for none.")
@click.option("--batch-size", type=int, default=256, show_default=True, help="That shuffling is judged for.")
@click.option("--shuffle-buffer", metavar="SIZE", default="256MB", show_default=True, help="The one that is marked.")
@output_options
def report(  # noqa: PLR0917 - click passes options by name
    store: str,
    out: str,
    split: str | None,
    samples: int,
    batch_size: int,
    shuffle_buffer: str,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write a page about STORE: one file of HTML that needs no network.

    Samples, classes, sizes, statistics, what was skipped and why, how well a shuffle buffer mixes, where it came from.

    \b
    Example:
      packer report out.lmdb -o report.html
    """
    from packer.cli.outputs import outside_of_stores
    from packer.page.figures import figures, values_of
    from packer.page.render import render
    from packer.sheet import can_draw, contact_sheet, spread
    from packer.tokens.shown import text_of
    from packer_reader.arguments import whole
    from packer_reader.errors import UsageError, os_error
    from packer_reader.stores.open import open_store, store_folders

    count = whole("--samples", samples, 0, 1024)
    if Path(out).suffix.lower() not in {".html", ".htm"}:
        raise UsageError(f"{out!r} is no page's name: end it in .html")
    outside_of_stores(Path(out))
    opened = [open_store(f) for f in store_folders(Path(store))] if split is None else [open_store(store, split)]
    found, sheets = list[dict[str, Any]](), list[Any]()
    for one in opened:
        with counting(f"counting {one.path.name}", values_of(one), quiet=quiet or as_json, unit="value") as heard:
            found.append(figures(one, batch_size, shuffle_buffer, heard))
        drawn = spread(len(one), count) if count and can_draw(one) else []
        with counting("drawing", len(drawn), quiet=quiet or as_json) as heard:
            sheets.append(contact_sheet(one, drawn, text_of(one), heard) if drawn else None)
    page = render(Path(store).resolve().name, found, sheets)
    try:
        Path(out).write_text(page, encoding="utf-8")
    except OSError as error:
        raise os_error(error, "writing", Path(out)) from error
    click.echo(json.dumps({"report": out, "stores": found}) if as_json else f"{out}: {len(page):,} bytes")
