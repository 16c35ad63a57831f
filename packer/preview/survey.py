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
from packer.sample import Problem
from packer.sources.base import Expecting
from packer.transforms.decode import upright_size
from packer.transforms.masks import decode_mask
from packer_reader.errors import SampleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from packer.drive import Watcher
    from packer.fields import Extra
    from packer.sample import Ref
    from packer.sources.base import DocumentSource, SampleSource
    from packer.sources.refs import RefTable

__all__ = ["QUANTILES", "Look", "Survey", "survey"]

QUANTILES = (0, 5, 25, 50, 75, 95, 100)
"""Percent."""
_OPENED = 2000
"""Samples that are opened for their sizes, before copies are looked for."""
_MASKS = 64
"""Samples whose masks are decoded."""
_TOGETHER = 128
"""Samples that are read before the clock is looked at."""
_SHOWN = 5

Ints = npt.NDArray[np.int64]
Contents = dict[int, tuple[bytes, int]]
"""Hash of the content and label, by number of the ref."""


@dataclass(frozen=True)
class Look:
    """What is looked at."""

    source: SampleSource | DocumentSource
    refs: RefTable
    splits: tuple[str, ...]
    """Names of the splits; empty without."""
    split_of: Ints
    """Number of the split of each ref, (n,)."""
    extras: tuple[Extra, ...]
    """Fields beside the image."""
    max_pixels: int
    seed: int
    seconds: float
    """About so long."""


@dataclass
class Survey:
    """What was seen; `opened` and `compared` say of how much."""

    opened: int = 0
    """Samples whose header was read: all, or an even draw."""
    sides: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of `height`, `width`, `shorter` and `longer`, in pixels, values by percent of the samples; empty for text."""
    compared: int = 0
    """Samples whose content was read, of those that another one has the same number of bytes as."""
    comparable: int = 0
    copies: int = 0
    """Samples whose content an earlier one has as well."""
    copied: list[list[str]] = field(default_factory=list)
    """Names of some that have one content."""
    relabelled: int = 0
    """Contents that stand in several classes."""
    leaked: dict[str, int] = field(default_factory=dict)
    """Contents that two splits both have, by their names: `train, val`."""
    leaks: list[list[str]] = field(default_factory=list)
    """Names of some of these."""
    masks: dict[str, int] = field(default_factory=dict)
    """`looked` at, `lossy` and `binary`: with no other labels than 0 and 255, and some 255; empty without masks."""
    problems: list[Problem] = field(default_factory=list)
    """Samples that cannot be opened."""


def survey(look: Look, watcher: Watcher) -> Survey:
    """Open samples for their sizes and masks, and compare contents, until the time is over.

    Contents are equal where XXH3 (128 bits) of the files is. Only files of one size can be, so no others are read.

    Args:
        look: at what, and how long.
        watcher: hears how far it is.
    """
    found, count = Survey(), len(look.refs)
    if not count or look.seconds <= 0:
        return found
    began, contents = time.monotonic(), Contents()
    drawn = np.sort(np.random.default_rng(look.seed).permutation(count)[:_OPENED])
    watcher.begin("opening", len(drawn))
    _open(look, drawn, began + look.seconds / 2, watcher, (found, contents))
    groups = _same_size(look.refs)
    found.comparable = len(groups)
    watcher.begin("comparing", len(groups))
    _compare(look, groups, began + look.seconds, watcher, contents)
    found.compared = sum(number in contents for number in groups.tolist())
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
        contents[ref.place] = _content(read)
        found.opened += 1
        if isinstance(read, str):
            continue
        try:
            sides.append(_size(read, look.max_pixels))
        except SampleError as error:
            found.problems.append(Problem(ref.name, error.failure, error.reason))
            continue
        for name in masks if seen["looked"] < _MASKS else ():
            seen.update(_mask(read.extras.get(name), name, look.max_pixels))
    if sides:
        found.sides = _quantiles(np.array(sides))
    found.masks = {name: seen[name] for name in ("looked", "lossy", "binary")} if masks else {}


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
    try:
        labels = np.unique(decode_mask(bytes(value), name, max_pixels))
    except SampleError as error:
        return ["looked", "lossy"] if "lossy" in error.reason else ["looked"]
    return ["looked", "binary"] if labels[-1] == 255 and set(labels.tolist()) <= {0, 255} else ["looked"]


def _quantiles(sides: Ints) -> dict[str, dict[str, int]]:
    """Of heights and widths, (n, 2)."""
    columns = {"height": sides[:, 0], "width": sides[:, 1], "shorter": sides.min(1), "longer": sides.max(1)}
    return {
        name: {str(q): int(np.percentile(column, q, method="nearest")) for q in QUANTILES}
        for name, column in columns.items()
    }


def _same_size(refs: RefTable) -> Ints:
    """Refs whose file another one may equal: those of one size, and of one CRC where archives have it, stand together.

    Sizes that are not known before a sample is read count as one.
    """
    sizes, crcs = refs.sizes, np.asarray(refs.rows["crc"])
    order = np.lexsort((crcs, sizes))
    same = (np.diff(sizes[order]) == 0) & (np.diff(crcs[order]) == 0)
    inside = np.concatenate([same, [False]]) | np.concatenate([[False], same])
    found: Ints = order[inside].astype(np.int64)
    return found


def _compare(look: Look, groups: Ints, ends: float, watcher: Watcher, contents: Contents) -> None:
    """Read what may be equal: not from the smallest files on, should the time not be enough."""
    start = int(np.random.default_rng(look.seed).integers(max(1, len(groups))))
    left = [number for number in np.roll(groups, -start).tolist() if number not in contents]
    watcher.advance(len(groups) - len(left), 0, 0)
    for ref, read in _reads(look, np.array(left, np.int64), ends, watcher):
        if not isinstance(read, SampleError):
            contents[ref.place] = _content(read)


def _tell(look: Look, contents: Contents, found: Survey) -> None:
    """What equal contents mean for classes and splits."""
    together = dict[bytes, list[int]]()
    for number in sorted(contents):
        together.setdefault(contents[number][0], []).append(number)
    leaked = Counter[str]()
    for members in together.values():
        if len(members) < 2:
            continue
        found.copies += len(members) - 1
        found.relabelled += len({contents[number][1] for number in members}) > 1
        if len(found.copied) < _SHOWN:
            found.copied.append(_names(look.refs, members))
        in_split = dict(zip(look.split_of[members].tolist(), members, strict=True))
        leaked.update(f"{look.splits[one]}, {look.splits[other]}" for one, other in combinations(sorted(in_split), 2))
        if len(in_split) > 1 and len(found.leaks) < _SHOWN:
            found.leaks.append(_names(look.refs, [in_split[split] for split in sorted(in_split)]))
    found.leaked = dict(leaked)


def _names(refs: RefTable, members: Sequence[int]) -> list[str]:
    return [refs.name(number) for number in members[:_SHOWN]]
