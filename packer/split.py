"""Which split a sample belongs to. Pure.

Membership is a hash of the seed and the sample's name or group, so that a set that grows moves nothing from one side to
the other. With `stratify` it is the rank of that hash within the class, which is exact and can move.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from packer_reader.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packer.recipe import Recipe

__all__ = ["TRAIN", "VAL", "in_val"]

TRAIN, VAL = "train", "val"


def in_val(recipe: Recipe, names: Iterable[str], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which samples go to `val`; bool (n,).

    Args:
        recipe: with `val` set; its seed, `group_by` and `stratify` count.
        names: source names, n of them.
        labels: class of each, int64 (n,).

    Raises:
        UsageError: `group_by` does not match a name.
    """
    assert recipe.val is not None
    pattern = re.compile(recipe.group_by) if recipe.group_by is not None else None
    prefix = recipe.seed.to_bytes(8, "little")
    hashes = np.fromiter((_hash(prefix, _group(pattern, name)) for name in names), np.uint64)
    if not recipe.stratify:
        return hashes < np.uint64(min(2**64 - 1, int(recipe.val * 2**64)))
    chosen = np.zeros(len(hashes), np.bool_)
    by_class = np.lexsort((hashes, labels))
    starts = np.flatnonzero(np.diff(labels[by_class], prepend=labels.min(initial=0) - 1))
    for members in np.split(by_class, starts[1:]):
        chosen[members[: round(recipe.val * len(members))]] = True
    return chosen


def _group(pattern: re.Pattern[str] | None, name: str) -> str:
    if pattern is None:
        return name
    found = pattern.search(name)
    if found is None:
        raise UsageError(f"--group-by {pattern.pattern!r} does not match {name!r}: it must match every source name")
    return (found.group(1) if pattern.groups else found.group()) or ""


def _hash(prefix: bytes, text: str) -> int:
    digest = hashlib.blake2b(prefix + text.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
