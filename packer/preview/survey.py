"""A closer look into a source, within a given time: sizes by headers, copies and leakage by content, masks."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer.checksum import content_hash
from packer.output.statistics import QUANTILES
from packer.plan import Plan
from packer.preview.contents import Contents, candidates
from packer.sample import Problem
from packer.sources.base import Expecting
from packer.transforms.decode import upright_size
from packer.transforms.masks import decode_mask, is_lossy
from packer_reader.errors import SampleError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packer.drive import Watcher
    from packer.fields import Extra
    from packer.recipe import Recipe
    from packer.sample import Ref
    from packer.sources.base import DocumentSource, SampleSource
    from packer.sources.refs import RefTable

__all__ = ["Leak", "Look", "Survey", "survey"]

_OPENED = 2000
"""Samples that are opened for their sizes, before copies are looked for."""
_MASKS = 64
"""Samples whose masks are decoded."""
_TOGETHER = 128
"""Samples that are read before the clock is looked at."""
_SHOWN = 5

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Look:
    """What is looked at."""

    source: SampleSource | DocumentSource
    refs: RefTable
    splits: tuple[str, ...]
    """Names of the splits; empty without."""
    split_of: npt.NDArray[np.int16]
    """Number of the split of each ref, (n,)."""
    extras: tuple[Extra, ...]
    """Fields beside the image."""
    recipe: Recipe
    seconds: float
    """About so long."""


@dataclass(frozen=True)
class Leak:
    """Contents that two splits both have."""

    splits: tuple[str, str]
    contents: int
    examples: list[list[str]]
    """Names of some, one of each split."""


@dataclass
class Survey:
    """What was seen; `opened` and `compared` say of how much."""

    opened: int = 0
    """Samples whose header was read: all, or an even draw."""
    sides: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of `height`, `width`, `shorter` and `longer`, in pixels, values by percent of the samples; empty for text."""
    considered: int = 0
    """Samples whose sizes in bytes were compared: all, or those of some sizes."""
    comparable: int = 0
    """Of these, samples that another one has the same number of bytes as."""
    compared: int = 0
    """Of these, samples whose content was read."""
    copies: int = 0
    """Samples whose content an earlier one has as well."""
    copied: list[list[str]] = field(default_factory=list)
    """Names of some that have one content."""
    relabelled: int = 0
    """Contents that stand in several classes."""
    leaks: list[Leak] = field(default_factory=list)
    masks: dict[str, int] = field(default_factory=dict)
    """`looked` at, and of these `lossy`, `empty` (0 everywhere) and `binary` (no labels but 0 and 255, and some 255);
    empty without masks."""
    problems: list[Problem] = field(default_factory=list)
    """Samples that cannot be opened."""


def survey(look: Look, watcher: Watcher) -> Survey:
    """Open samples for their sizes and masks, and compare contents, until the time is over.

    Contents are equal where XXH3 (128 bits) of the files is. Only files of one size can be, so no others are read.

    Args:
        look: at what, and how long.
        watcher: hears how far it is.
    """
    found, refs = Survey(), look.refs
    if not len(refs) or look.seconds <= 0:
        return found
    began = time.monotonic()
    drawn = np.sort(Plan(len(refs), look.recipe.seed, _OPENED).refs(0))
    groups, found.considered = candidates(refs.sizes, refs.rows["crc"], look.recipe.seed)
    contents, found.comparable = Contents(np.concatenate([drawn, groups])), len(groups)
    watcher.begin("opening", len(drawn))
    _open(look, drawn, began + look.seconds / 2, watcher, (found, contents))
    watcher.begin("comparing", len(groups))
    _compare(look, groups, began + look.seconds, watcher, contents)
    found.compared = int(contents.known(groups).sum())
    _tell(look, contents, found)
    return found


def _reads(look: Look, numbers: Ints, ends: float, watcher: Watcher) -> Iterator[tuple[Ref, Any]]:
    """Samples, some at a time until the time is over: what each holds, or the error."""
    for start in range(0, len(numbers), _TOGETHER):
        if time.monotonic() >= ends and start:
            return
        refs = look.refs.some(numbers[start : start + _TOGETHER])
        if isinstance(look.source, Expecting):
            look.source.expect(refs)
        for ref in refs:
            yield ref, _read(look.source, ref)
        watcher.advance(len(refs), sum(ref.size for ref in refs), 0)


def _read(source: Any, ref: Ref) -> Any:
    try:
        return source.document(ref) if hasattr(source, "document") else source.read(ref)
    except SampleError as error:
        return error


def _content(read: Any) -> tuple[bytes, int]:
    """Hash and label."""
    if isinstance(read, str):
        return content_hash(read.encode("utf-8", "surrogatepass")), -1
    return read.ready.source_hash if read.ready is not None else content_hash(read.image), read.label


def _open(look: Look, drawn: Ints, ends: float, watcher: Watcher, into: tuple[Survey, Contents]) -> None:
    found, contents = into
    masks = [extra.name for extra in look.extras if extra.kind == "mask"]
    seen, sides = Counter[str](), list[tuple[int, int]]()
    for ref, read in _reads(look, drawn, ends, watcher):
        if isinstance(read, SampleError):
            found.problems.append(Problem(ref.name, read.failure, read.reason))
            continue
        contents.note(ref.place, *_content(read))
        found.opened += 1
        if isinstance(read, str):
            continue
        try:
            sides.append(_size(read, look.recipe.max_pixels))
        except SampleError as error:
            found.problems.append(Problem(ref.name, error.failure, error.reason))
            continue
        for name in masks if seen["looked"] < _MASKS else ():
            seen.update(_mask(read.extras.get(name), name, look.recipe.max_pixels))
    if sides:
        found.sides = _quantiles(np.array(sides))
    found.masks = {name: seen[name] for name in ("looked", "lossy", "empty", "binary")} if masks else {}


def _size(read: Any, max_pixels: int) -> tuple[int, int]:
    if read.ready is not None:
        return int(read.ready.size[0]), int(read.ready.size[1])
    if isinstance(read.image, bytes | memoryview):
        return upright_size(bytes(read.image), max_pixels)
    return int(read.image.shape[0]), int(read.image.shape[1])


def _mask(value: Any, name: str, max_pixels: int) -> list[str]:
    """What a mask's file counts as."""
    if value is None:
        return []
    data = bytes(value)
    if is_lossy(data):
        return ["looked", "lossy"]
    try:
        labels = np.unique(decode_mask(data, name, max_pixels))
    except SampleError:
        return ["looked"]
    kinds = {(0,): ["empty"], (255,): ["binary"], (0, 255): ["binary"]}
    return ["looked", *kinds.get(tuple(labels.tolist()), [])]


def _quantiles(sides: Ints) -> dict[str, dict[str, int]]:
    """Of heights and widths, (n, 2)."""
    columns = {"height": sides[:, 0], "width": sides[:, 1], "shorter": sides.min(1), "longer": sides.max(1)}
    return {
        name: {str(q): int(np.percentile(column, q, method="nearest")) for q in QUANTILES}
        for name, column in columns.items()
    }


def _compare(look: Look, groups: Ints, ends: float, watcher: Watcher, contents: Contents) -> None:
    """Read what may be equal: not from the smallest files on, should the time not be enough."""
    start = int(np.random.default_rng(look.recipe.seed).integers(max(1, len(groups))))
    left = np.roll(groups, -start)
    left = left[~contents.known(left)]
    watcher.advance(len(groups) - len(left), 0, 0)
    for ref, read in _reads(look, left, ends, watcher):
        if not isinstance(read, SampleError):
            contents.note(ref.place, *_content(read))


def _tell(look: Look, contents: Contents, found: Survey) -> None:
    """What equal contents mean for classes and splits."""
    leaked, examples = Counter[tuple[int, int]](), dict[tuple[int, int], list[list[str]]]()
    for members, labels in contents.repeated():
        found.copies += len(members) - 1
        found.relabelled += len(np.unique(labels)) > 1
        if len(found.copied) < _SHOWN:
            found.copied.append([look.refs.name(number) for number in members[:_SHOWN].tolist()])
        in_split = dict(zip(look.split_of[members].tolist(), members.tolist(), strict=True))
        for pair in combinations(sorted(in_split), 2):
            leaked[pair] += 1
            named = examples.setdefault(pair, [])
            if len(named) < _SHOWN:
                named.append([look.refs.name(in_split[split]) for split in pair])
    found.leaks = [
        Leak((look.splits[one], look.splits[other]), count, examples[one, other])
        for (one, other), count in sorted(leaked.items())
    ]
