"""`packer inspect`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from packer.cli.given import any_given
from packer.cli.options import output_options
from packer.cli.progress import counting

if TYPE_CHECKING:
    from packer_reader.stores.base import Store

__all__ = ["inspect"]


@click.command()
@click.argument("store")
@click.option("--split", help="Which split, where STORE holds several.")
@click.option("--sample", metavar="ID|NAME", help="One sample, by number or by the name of its source file.")
@click.option("--samples", type=int, metavar="N", help="Some samples, spread over the store.")
@click.option("--diff", "other", metavar="STORE", help="What differs between both stores.")
@click.option("--batch", metavar="EPOCH:STEP", help="The samples that training saw at a step, both counted from 0.")
@click.option("--batch-size", type=int, help="With --batch: samples per batch and rank.")
@click.option("--rank", type=int, default=0, show_default=True, help="With --batch: whose part.")
@click.option("--world-size", type=int, default=1, show_default=True, help="With --batch: number of ranks.")
@click.option("--seed", type=int, default=0, show_default=True, help="With --batch: of the StreamDataset.")
@click.option(
    "--shuffle-buffer",
    metavar="N|SIZE",
    default="256MB",
    show_default=True,
    help="With --batch: of the StreamDataset, in samples or bytes.",
)
@click.option(
    "--start",
    type=int,
    default=0,
    help="With --batch, for the epoch that a run was resumed in: `samples` of its state; steps count from there.",
)
@click.option("--pad", is_flag=True, help="With --batch: the StreamDataset has pad=True.")
@click.option("--drop-last", is_flag=True, help="With --batch: the StreamDataset has drop_last=True.")
@click.option("--lanes", type=int, default=1, help="With --batch: of the StreamDataset.")
@click.option("--block", type=int, help="With --batch: of the StreamDataset.")
@click.option("-o", "out", metavar="FILE", help="With --samples or --batch: draw them into a picture as well.")
@output_options
def inspect(  # noqa: PLR0917 - click passes options by name
    store: str,
    split: str | None,
    sample: str | None,
    samples: int | None,
    other: str | None,
    batch: str | None,
    batch_size: int | None,
    rank: int,
    world_size: int,
    seed: int,
    shuffle_buffer: str,
    start: int,
    lanes: int,
    block: int | None,
    out: str | None,
    *,
    pad: bool,
    drop_last: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Print what STORE holds: fields, classes, statistics, what was skipped.

    \b
    Example:
      packer inspect out.lmdb
      packer inspect out.lmdb --sample n0001/img_000001.JPEG
      packer inspect out.lmdb --samples 16 -o sheet.png
      packer inspect out.lmdb --diff older.lmdb
      packer inspect out.lmdb --batch 3:1200 --batch-size 64 --rank 1 --world-size 4 -o sheet.png
    """
    if sum(one is not None for one in (sample, samples, other, batch)) > 1:
        raise click.UsageError("--sample, --samples, --diff and --batch are asked for one at a time")
    if batch is None and any_given("batch_size", "rank", "world_size", "seed", "shuffle_buffer", "start"):
        raise click.UsageError("options of a run are about a batch: give --batch EPOCH:STEP too")
    if out is not None:
        from packer.cli.outputs import outside_of_stores

        outside_of_stores(Path(out))
    if out is not None and batch is None and samples is None:
        raise click.UsageError("-o draws samples: give --samples N or --batch EPOCH:STEP too")
    from packer_reader.arguments import whole
    from packer_reader.stores.open import open_store

    if samples is not None:
        from packer.sheet import spread

        opened = open_store(store, split)
        _show(
            opened,
            spread(len(opened), whole("--samples", samples, 1, 1024)),
            out,
            as_json=as_json,
            quiet=quiet or as_json,
        )
        return
    if other is not None:
        from packer_reader.diff import compare_stores, difference_lines

        both = open_store(store, split), open_store(other, split)
        with counting("comparing", sum(map(len, both)), quiet=quiet or as_json) as heard:
            found = compare_stores(*both, heard)
        click.echo(json.dumps(found) if as_json else "\n".join(difference_lines(found)))
        return
    if batch is None:
        from packer_reader.summary import inspect_text

        click.echo(inspect_text(store, split, sample, as_json=as_json))
        return
    if batch_size is None:
        raise click.UsageError("--batch goes with --batch-size")
    from packer_reader.arguments import tail_of
    from packer_reader.recall import batch_at

    opened = open_store(store, split)
    buffer = int(shuffle_buffer) if re.fullmatch("[0-9]{1,18}", shuffle_buffer) else shuffle_buffer
    numbers = batch_at(
        opened,
        batch,
        batch_size=batch_size,
        seed=seed,
        shuffle_buffer=buffer,
        rank=rank,
        world_size=world_size,
        start=start,
        tail=tail_of(batch_size, drop_last=drop_last, pad=pad),
        lanes=lanes,
        block=block,
    )
    _show(opened, numbers.tolist(), out, as_json=as_json, quiet=quiet or as_json)


def _show(store: Store, numbers: list[int], out: str | None, *, as_json: bool, quiet: bool) -> None:
    """Print some samples, with the beginning of a text, and draw them where that is asked for."""
    import numpy as np

    from packer.tokens.shown import text_of
    from packer_reader.recall import batch_lines, describe_batch

    shown = text_of(store)
    if out is not None:
        from packer.sheet import contact_sheet, save_sheet

        with counting("drawing", len(numbers), quiet=quiet) as heard:
            save_sheet(contact_sheet(store, numbers, shown, heard), Path(out))
    found, lines = describe_batch(store, np.array(numbers)), batch_lines(store, np.array(numbers))
    if shown is not None:
        for sample in found["samples"]:
            stored = store[sample["sample"]]
            sample["text"] = shown(stored["tokens"][: stored.get("n_valid", len(stored["tokens"]))])
        lines = [f"{line}  {each['text'][:60]!r}" for line, each in zip(lines, found["samples"], strict=True)]
    click.echo(json.dumps(found) if as_json else "\n".join(lines))
