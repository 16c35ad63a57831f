"""`packer tune`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from packer.cli.given import any_given
from packer.cli.loops import check_loop, loop_options
from packer.cli.options import output_options
from packer.cli.progress import Steps

if TYPE_CHECKING:
    from packer.measure.settings import Setting

__all__ = ["tune"]


@click.command()
@loop_options
@click.option(
    "--step-ms", type=float, default=0.0, metavar="MS", help="Time of a training step that leaves the CPU alone."
)
@click.option("--script", metavar="'python train.py'", help="Run this training instead, with each setting.")
@click.option("--seconds", type=float, default=1.0, show_default=True, help="Of each repeat.")
@click.option("--repeats", type=int, default=3, show_default=True, help="Of each setting.")
@click.option("--limit", type=float, default=150.0, show_default=True, help="Seconds for all settings.")
@click.option("-o", "out", metavar="FILE", help="Draw what was found: a .png, .pdf or .svg (needs matplotlib).")
@output_options
def tune(  # noqa: PLR0917 - click passes options by name
    store: str,
    split: str | None,
    batch_size: int,
    crop: int | None,
    seq_len: int | None,
    step_ms: float,
    script: str | None,
    seconds: float,
    repeats: int,
    limit: float,
    out: str | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Find the workers, threads and prefetch with which STORE is read fastest on this machine.

    Each setting runs in a process of its own, none whose memory would be over half of what is free. Chosen is the one
    with the fewest workers that comes within 5 % of the best. A script is any Python program that reads STORE through a
    DataLoader over a StreamDataset: these get each setting's arguments in place of their own, its first loop is
    measured, and then it ends.

    \b
    Example:
      packer tune out.lmdb --crop 224 --step-ms 120 -o tune.png
      packer tune out.lmdb --script 'python train.py --lr 0.1'
    """
    from packer.measure.plot import plot_tune
    from packer.measure.script import program_of
    from packer.measure.trial import Loop
    from packer.measure.tune import tune as sweep
    from packer_reader.errors import UsageError

    if script is not None and any_given("batch_size", "crop", "seq_len", "step_ms", "split"):
        raise UsageError("--script has its own loop: leave out --batch-size, --crop, --seq-len, --step-ms and --split")
    check_loop(seconds, repeats, out)
    for name, value in (("--step-ms", step_ms), ("--limit", limit)):
        if not 0 <= value <= 1e6:
            raise UsageError(f"{name} is {value!r}, it must be from 0 to a million")
    loop = Loop(store, split, batch_size, crop, seq_len, step_ms / 1000, seconds, repeats)

    steps = Steps(quiet=quiet or as_json)

    def heard(setting: Setting, total: int) -> None:
        steps.begin(f"trying {setting.workers} workers with {setting.threads} threads, {setting.start}", total)

    program = None if script is None else program_of(script)
    found = sweep(loop, limit, heard, program)
    if out is not None:
        plot_tune(found, Path(out))
    click.echo(json.dumps(found.to_json()) if as_json else "\n".join(found.lines()))
