"""A reading position as a small dict, and whether one fits. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packer_reader.arguments import whole
from packer_reader.epoch import Position
from packer_reader.errors import StateError, UsageError

__all__ = ["STATE_VERSION", "position_of"]

STATE_VERSION = 1
_SHARE = ("worker", "workers", "given", "place", "batch", "global_batch")
"""Entries of a state that is one worker's."""


def position_of(state: Mapping[str, Any], mine: Mapping[str, Any], samples: int, lanes: int) -> Position:
    """Where a state's iteration goes on.

    Args:
        state: what `state_dict` returned.
        mine: all that the order depends on; the state must have been saved with the same.
        samples: of an epoch.
        lanes: of the order.

    Raises:
        StateError: the state belongs to another store or another order, or is none.
    """
    if not isinstance(state, Mapping):
        raise StateError(f"the state is {state!r}: pass what state_dict returned")
    missing = [name for name in [*mine, "epoch", "samples"] if name not in state]
    if missing:
        raise StateError(f"the state lacks {', '.join(missing)}: pass what state_dict returned")
    differ = [f"{name} (was {state[name]!r}, is {mine[name]!r})" for name in mine if state[name] != mine[name]]
    if differ:
        raise StateError(
            f"the state was saved with another {'; '.join(differ)}: make the data set with the same values"
        )
    try:
        epoch = whole("epoch", state["epoch"], 0, 2**62)
        consumed = whole("samples", state["samples"], 0, samples)
        for name in _SHARE:
            whole(name, state.get(name, 0), 0, 2**62)
    except UsageError as error:
        raise StateError(f"the state is damaged: {error}") from None
    if lanes > 1 and consumed % lanes and consumed < samples:
        raise StateError(f"the state is at sample {consumed}, no whole step of {lanes} lanes")
    return Position(epoch, consumed)
