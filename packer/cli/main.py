"""The group of commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any

import click

from packer_reader._version import __version__
from packer_reader.errors import PackerError

__all__ = ["cli", "main"]

COMMANDS = {
    "build": "packer.cli.build",
    "shard": "packer.cli.build",
    "plan": "packer.cli.plan",
    "inspect": "packer.cli.inspect",
    "verify": "packer.cli.verify",
    "report": "packer.cli.report",
    "bench": "packer.cli.bench",
    "tune": "packer.cli.tune",
    "export": "packer.cli.export",
    "tokenizer": "packer.cli.tokenizer",
}
"""Command name to the module that holds it, in the order of the help."""


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as a scheduler sends it."""


def _terminate(_: int, __: Any) -> None:
    raise _Terminated


def _go_on(ctx: click.Context) -> str:
    """What to do after an interruption: builds go on where they were."""
    return ": run the same command again to go on" if ctx.invoked_subcommand in {"build", "shard"} else ""


class _Commands(click.Group):
    """Loads a command's module when it is asked for, and restates errors in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PackerError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except BrokenPipeError:
            # Whoever read the output has gone; nothing may be flushed to it at exit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)
        except OSError as error:
            what = f" ({error.filename!r})" if error.filename else ""
            click.echo(
                f"error: {error.strerror or error}{what}: check the path, its permissions and the disk", err=True
            )
            ctx.exit(1)
        except _Terminated:
            click.echo(f"terminated{_go_on(ctx)}", err=True)
            ctx.exit(143)
        except KeyboardInterrupt:
            click.echo(f"interrupted{_go_on(ctx)}", err=True)
            ctx.exit(130)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="packer")
def cli() -> None:
    """Convert raw data sets, once and offline, into shuffled shards or LMDB stores.

    packer_reader streams them into PyTorch training.

    \b
    Example:
      packer build imagefolder/ out.lmdb --resize 256 --fit crop
      packer shard imagefolder/ out/ --resize 256 --fit crop --size 256MB
    """


def main() -> None:
    """Entry point of the commands `packer` and `packer-data`."""
    signal.signal(signal.SIGTERM, _terminate)
    cli(prog_name="packer")
