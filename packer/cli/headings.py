"""A command whose help lists its options under headings, those of one kind of data together."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["HeadedCommand", "HeadedOption"]


class HeadedOption(click.Option):
    """An option under a heading; plain options stand under "Output"."""

    def __init__(self, *args: Any, heading: str, **attributes: Any) -> None:
        """Take what `click.Option` takes, and the heading."""
        super().__init__(*args, **attributes)
        self.heading = heading


class HeadedCommand(click.Command):
    """A command with headings, in the order of their first options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, grouped."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                heading = parameter.heading if isinstance(parameter, HeadedOption) else "Output"
                groups.setdefault(heading, []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)
