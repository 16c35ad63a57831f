"""What stands on the command line, as opposed to defaults."""

from __future__ import annotations

import click
from click.core import ParameterSource

__all__ = ["any_given", "typed"]


def _given(context: click.Context, name: str | None) -> bool:
    return context.get_parameter_source(name or "") is ParameterSource.COMMANDLINE


def any_given(*names: str) -> bool:
    """Whether one of these options of the running command was given."""
    context = click.get_current_context()
    return any(_given(context, name) for name in names)


def typed(leave_out: frozenset[str]) -> list[str]:
    """The running command's options as they were typed, but for some by name."""
    context, words = click.get_current_context(), list[str]()
    for option in context.command.params:
        if not isinstance(option, click.Option) or option.name in leave_out or not _given(context, option.name):
            continue
        value = context.params[option.name or ""]
        if option.is_flag:
            words.append(option.opts[0] if value else option.secondary_opts[0])
            continue
        for one in value if option.multiple else (value,):
            words += [option.opts[0], str(one)]
    return words
