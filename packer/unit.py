"""A unit of work: what a worker needs to know to convert one, and what the driver hears of it.

A unit leaves two files in the staging folder: `N.data`, samples in the container's own framing, ready to be copied; and
`N.rows`, where each of them lies, its columns, its problems and its share of the statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from packer.plan import Plan
from packer.sources.refs import RefTable, map_array

if TYPE_CHECKING:
    from pathlib import Path

    from packer.fields import Extra
    from packer.recipe import Recipe
    from packer.reuse import Reuse
    from packer.sample import Ref
    from packer.sources.base import Source

__all__ = ["SplitJob", "UnitDone", "ref_numbers", "some_refs", "unit_refs"]


@dataclass(frozen=True)
class SplitJob:
    """All that a worker needs to know about one split at one size; small, it travels with every unit."""

    recipe: Recipe
    source: Source
    refs: Path
    """Folder of the ref columns."""
    members: Path | None
    """u64 numbers of the split's refs, ascending; None means all."""
    count: int
    """Refs of the split."""
    codec: str
    """Of the image field."""
    classes: tuple[str, ...] | None
    work: Path
    """The split's staging folder."""
    units: Path
    """Folder of the fragments."""
    labelled: bool
    """Whether samples have a label."""
    extras: tuple[Extra, ...] = ()
    """Other fields, behind the label."""
    reuse: Reuse | None = None
    """An earlier store, to copy from what has not changed."""

    @property
    def plan(self) -> Plan:
        """The split's order."""
        return Plan(self.count, self.recipe.seed, self.recipe.unit, self.recipe.shuffle)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Fields in stored order."""
        if self.recipe.text is not None:
            return self.recipe.text.suffixes
        label = ("cls",) if self.labelled else ()
        extras = [extra.suffix for extra in self.extras]
        return (self.codec, *label, *extras, *(("json",) if self.recipe.meta else ()))

    def name(self, key: int) -> str:
        """The source name of a key."""
        unit = key // self.recipe.unit
        return unit_refs(self, unit)[key - unit * self.recipe.unit].name

    def data_path(self, unit: int) -> Path:
        """The unit's fragment."""
        return self._folder(unit) / f"{unit:09d}.data"

    def rows_path(self, unit: int) -> Path:
        """The unit's rows."""
        return self._folder(unit) / f"{unit:09d}.rows"

    def _folder(self, unit: int) -> Path:
        return self.units / f"{unit // 1000:06d}"


@dataclass(frozen=True, slots=True)
class UnitDone:
    """What the driver hears of a finished unit: one line of the journal."""

    unit: int
    written: int
    skipped: int
    source_bytes: int
    name_bytes: int
    """Of the written samples' source names."""
    data: tuple[int, int]
    """Bytes and checksum of the fragment."""
    rows: tuple[int, int]
    """Bytes and checksum of the rows."""
    samples: int
    """Of the store in the fragment; other than `written` where documents were packed to sequences."""
    records: int
    """Samples or blocks of them in a tar, values of LMDB."""
    problem: str | None = None
    """The first skipped sample, in words."""
    reused: int = 0
    """Samples that were copied from an earlier store."""


def some_refs(job: SplitJob, places: npt.NDArray[np.int64]) -> list[Ref]:
    """Refs by their places in the split."""
    rows = (job.refs / "rows.bin").stat()
    return _table(job.refs, rows.st_ino, rows.st_mtime_ns).some(ref_numbers(job, places))


def ref_numbers(job: SplitJob, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Numbers of refs, over all splits, by their places in the split: int64 (n,) both."""
    return places if job.members is None else map_array(job.members, "<u8")[places].astype(np.int64)


def unit_refs(job: SplitJob, unit: int) -> list[Ref]:
    """Refs of a unit, in their order."""
    return some_refs(job, job.plan.refs(unit))


@lru_cache(maxsize=4)
def _table(folder: Path, _inode: int, _mtime_ns: int) -> RefTable:
    """The refs in a folder, mapped once: by the file they are in, since a later build has the same folder."""
    return RefTable(folder)
