"""Options of the commands that measure a loop over a store."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["check_loop", "loop_options"]

Command = TypeVar("Command", bound="Callable[..., Any]")

_OPTIONS = (
    click.argument("store"),
    click.option("--split", help="Which split, where STORE holds several."),
    click.option("--batch-size", type=int, default=256, show_default=True, help="Samples per batch."),
    click.option("--crop", type=int, metavar="N", help="With random crops, resized to NxN."),
    click.option("--seq-len", type=int, metavar="L", help="Read documents as sequences of L tokens."),
)


def loop_options(command: Command) -> Command:
    """STORE, and what is read of it."""
    return functools.reduce(lambda made, option: option(made), reversed(_OPTIONS), command)


def check_loop(seconds: float, repeats: int, out: str | None) -> None:
    """Refuse what cannot be measured, or drawn afterwards, before anything is.

    Raises:
        UsageError: naming the option.
    """
    from pathlib import Path

    from packer.cli.outputs import outside_of_stores
    from packer.measure.plot import check_name
    from packer_reader.arguments import whole
    from packer_reader.errors import UsageError

    whole("--repeats", repeats, 1, 100)
    if not 0.01 <= seconds <= 1e6:
        raise UsageError(f"--seconds is {seconds!r}, it must be from 0.01 to a million")
    if out is not None:
        check_name(Path(out))
        outside_of_stores(Path(out))
