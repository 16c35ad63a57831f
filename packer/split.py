"""Which split a sample belongs to, and what each split is made of. Pure.

Membership is a hash of the seed and the sample's name or group, so that a set that grows moves nothing from one side to
the other. With `stratify` it is the rank of that hash within the class, which is exact and can move.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer_reader.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packer.recipe import Recipe
    from packer.sample import Problem
    from packer.sources.base import Listing
    from packer.sources.refs import RefTable

__all__ = ["TRAIN", "VAL", "Split", "divide", "in_val"]

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


@dataclass(frozen=True)
class Split:
    """One split of a listing."""

    name: str | None
    members: np.ndarray[Any, np.dtype[np.uint64]] | None
    """Numbers of its refs, ascending; None means all."""
    count: int
    problems: tuple[Problem, ...]
    """Its samples that were refused while listing."""


def divide(recipe: Recipe, listing: Listing, refs: RefTable) -> list[Split]:
    """The splits of a listing, by its own folders or by `--val`.

    Raises:
        UsageError: the source has splits already, or one would be empty.
    """
    if recipe.val is None and not listing.splits:
        return [Split(None, None, len(refs), tuple(listing.problems))]
    if recipe.val is not None and listing.splits:
        raise UsageError(
            f"--val is given, but the source has splits already ({', '.join(listing.splits)}): leave it out"
        )
    if recipe.stratify and listing.labelled and listing.classes is None:
        raise UsageError("--stratify needs labels that are known before the conversion: leave it out")
    names: tuple[str, ...] = listing.splits or (TRAIN, VAL)
    numbers = refs.splits if listing.splits else in_val(recipe, refs.names(), refs.labels).astype(np.int32)
    splits = []
    for number, name in enumerate(names):
        members = np.flatnonzero(numbers == number).astype("<u8")
        problems = tuple(p for p in listing.problems if (p.split or names[0]) == name)
        if not len(members):
            way_out = "give a larger --val or another --seed" if recipe.val is not None else "remove its folder"
            raise UsageError(f"split {name!r} would have none of the {len(refs)} samples: {way_out}")
        splits.append(Split(name, members, len(members), problems))
    return splits
