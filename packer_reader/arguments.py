"""Checks of what users pass: each names the argument, its value, and what it takes."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from packer_reader.errors import UsageError

__all__ = ["check_transform", "names", "whole"]


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
