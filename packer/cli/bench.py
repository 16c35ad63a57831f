"""`packer bench`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from packer.cli.loops import check_loop, loop_options
from packer.cli.options import output_options
from packer.cli.progress import Steps

__all__ = ["bench"]


@click.command()
@loop_options
@click.option("--raw", metavar="SRC", help="The folder of images it was made from, through a plain DataLoader.")
@click.option("--seconds", type=float, default=1.5, show_default=True, help="Of each repeat.")
@click.option("--repeats", type=int, default=3, show_default=True, help="Of each stage.")
@click.option("-o", "out", metavar="FILE", help="Draw what was found: a .png, .pdf or .svg (needs matplotlib).")
@output_options
def bench(  # noqa: PLR0917 - click passes options by name
    store: str,
    split: str | None,
    batch_size: int,
    crop: int | None,
    seq_len: int | None,
    raw: str | None,
    seconds: float,
    repeats: int,
    out: str | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure how fast STORE is read on this machine, stage by stage, and say which one binds.

    Disk (nothing in memory), page cache, decoding, batches, handing over, all of it with a worker per CPU; beside what
    the disk, memory and the bare decoder can do. --raw shows what the same loop gets from the raw folder.

    \b
    Example:
      packer bench out.lmdb --crop 224 --raw imagefolder/ -o bench.png
    """
    from packer.measure.bench import bench as measured
    from packer.measure.plot import plot_bench
    from packer.measure.trial import Loop

    check_loop(seconds, repeats, out)
    loop = Loop(store, split, batch_size, crop, seq_len, 0.0, seconds, repeats)
    steps = Steps(quiet=quiet or as_json)
    found = measured(loop, raw, lambda stage, total: steps.begin(f"measuring {stage}", total))
    if out is not None:
        plot_bench(found, Path(out))
    click.echo(json.dumps(found.to_json()) if as_json else "\n".join(found.lines()))
