"""Checks of what users pass: each names the argument, its value, and what it takes."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING

from packer_reader.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from packer_reader.batches import Tail

__all__ = ["check_transform", "in_range", "names", "tail_of", "whole"]


def whole(name: str, value: object, low: int, high: int) -> int:
    """A whole number in a range; numpy's count too.

    Raises:
        UsageError: naming the argument and its value.
    """
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = low - 1
    if not low <= number <= high or isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}, it must be a whole number from {low} to {high}")
    return number


def names(fields: object) -> tuple[str, ...] | None:
    """Field names; None stays None.

    Raises:
        UsageError: it is no list of them.
    """
    if fields is None:
        return None
    if isinstance(fields, str) or not isinstance(fields, Iterable):
        raise UsageError(f"fields is {fields!r}, it must be a list of names, such as ['image']")
    return tuple(fields)


def check_transform(transform: object) -> None:
    """Refuse what cannot be called.

    Raises:
        UsageError: naming the value.
    """
    if transform is not None and not callable(transform):
        raise UsageError(f"transform is {transform!r}, it must be a function of a batch (or of a sample)")


def tail_of(batch_size: int | None, *, drop_last: bool, pad: bool) -> Tail:
    """What happens to a last batch that is not full.

    Raises:
        UsageError: both are asked for, or there are no batches.
    """
    if drop_last and pad:
        raise UsageError("drop_last and pad are both given: choose one")
    if batch_size is None and (drop_last or pad):
        raise UsageError("drop_last and pad are about batches: give batch_size as well")
    return "drop" if drop_last else "pad" if pad else "keep"


def in_range(number: int, samples: int) -> int:
    """A sample number; negative ones count from the end.

    Raises:
        NotFoundError: there is no such sample.
        UsageError: it is no number.
    """
    try:
        number = operator.index(number)
    except TypeError:
        raise UsageError(f"a sample number is a whole number, not {number!r}: find(name) takes source names") from None
    if not -samples <= number < samples:
        raise NotFoundError(f"there is no sample {number}: the store has {samples}")
    return number % samples
