"""What a worker runs: one unit of refs to one fragment and its rows.

A unit leaves two files in the staging folder: `N.data`, samples in the container's own framing, ready to be copied; and
`N.rows`, where each of them lies, its columns, its problems and its share of the statistics.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer.plan import Plan
from packer.sample import Problem
from packer.sinks.fragment import FRAGMENTS
from packer.sources.refs import RefTable
from packer_reader.errors import SampleError
from packer_reader.format.columns import COLUMN_MAGIC, frame_bytes, join_strings
from packer_reader.format.record import MAX_FIELD

if TYPE_CHECKING:
    from pathlib import Path

    from packer.recipe import Recipe
    from packer.sample import RawSample, Ref
    from packer.sources.base import Source
    from packer.transforms.image import StoredImage

__all__ = ["SplitJob", "UnitDone", "convert_unit", "stored_fields"]


@dataclass(frozen=True)
class SplitJob:
    """All that a worker needs to know about one split; small, it travels with every unit."""

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

    @property
    def plan(self) -> Plan:
        """The split's order."""
        return Plan(self.count, self.recipe.seed, self.recipe.unit, self.recipe.shuffle)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Fields in stored order."""
        label = ("cls",) if self.classes is not None else ()
        return (self.codec, *label, *(("json",) if self.recipe.meta else ()))

    def data_path(self, unit: int) -> Path:
        """The unit's fragment."""
        return self._folder(unit) / f"{unit:09d}.data"

    def rows_path(self, unit: int) -> Path:
        """The unit's rows."""
        return self._folder(unit) / f"{unit:09d}.rows"

    def _folder(self, unit: int) -> Path:
        return self.work / "units" / f"{unit // 1000:06d}"


@dataclass(frozen=True)
class UnitDone:
    """What the driver hears of a finished unit: one line of the journal."""

    unit: int
    written: int
    skipped: int
    source_bytes: int
    name_bytes: int
    """Of the written samples' source names."""
    data: tuple[int, int]
    """Bytes and CRC-32 of the fragment."""
    rows: tuple[int, int]
    """Bytes and CRC-32 of the rows."""
    problem: str | None = None
    """The first skipped sample, in words."""


@dataclass
class _Rows:
    """The columns of one unit as they grow."""

    keys: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    heights: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    refs: list[Ref] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)

    def arrays(self, *, labels: bool) -> dict[str, npt.NDArray[Any]]:
        offsets, names = join_strings([ref.name for ref in self.refs])
        hashes = np.frombuffer(b"".join(self.hashes), np.uint8).reshape(-1, 16)
        columns: dict[str, npt.NDArray[Any]] = {
            "col.height": np.array(self.heights, "<u4"),
            "col.width": np.array(self.widths, "<u4"),
            "col.bytes": np.array(self.sizes, "<u8"),
            "col.source_size": np.array([ref.size for ref in self.refs], "<u8"),
            "col.source_mtime_ns": np.array([ref.mtime_ns for ref in self.refs], "<i8"),
            "col.source_hash": hashes,
            "name.offsets": offsets,
            "name.bytes": names,
        }
        return ({"col.label": np.array(self.labels, "<i4")} if labels else {}) | columns


def convert_unit(job: SplitJob, unit: int) -> UnitDone:
    """Convert one unit; bad samples are recorded, never raised.

    Raises:
        OSError: the staging folder cannot be written.
    """
    keys, refs = job.plan.keys(unit), _refs(job, unit)
    path = job.data_path(unit)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, problems = _Rows(), list[Problem]()
    counts: Counter[str] = Counter()
    histogram = np.zeros((1 if job.recipe.gray else 3, 256), np.int64)
    with FRAGMENTS[job.recipe.container](path, job.suffixes) as fragment:
        for key, ref in zip(keys.tolist(), refs, strict=True):
            try:
                blobs, image, raw = _convert(job, ref)
            except SampleError as error:
                problems.append(Problem(ref.name, error.failure, error.reason, key))
                continue
            fragment.add(key, blobs)
            histogram += image.histogram
            if image.reencoded:
                counts[image.reencoded] += 1
            rows.keys.append(key)
            rows.labels.append(ref.label)
            rows.heights.append(image.size[0])
            rows.widths.append(image.size[1])
            rows.sizes.append(sum(map(len, blobs)))
            rows.refs.append(ref)
            rows.hashes.append(hashlib.sha256(raw.image).digest()[:16])
    meta = {"problems": [p.to_json() for p in problems], "reencoded": dict(counts), "histogram": histogram.tolist()}
    arrays = fragment.arrays() | rows.arrays(labels=job.classes is not None)
    frame = frame_bytes(COLUMN_MAGIC, {}, {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)} | arrays)
    job.rows_path(unit).write_bytes(frame)
    return UnitDone(
        unit=unit,
        written=len(rows.keys),
        skipped=len(problems),
        source_bytes=sum(ref.size for ref in refs),
        name_bytes=len(arrays["name.bytes"]),
        data=(fragment.bytes, fragment.crc),
        rows=(len(frame), zlib.crc32(frame)),
        problem=f"{problems[0].name!r}: {problems[0].reason}" if problems else None,
    )


def _refs(job: SplitJob, unit: int) -> list[Ref]:
    rows = (job.refs / "rows.bin").stat()
    table = _table(job.refs, rows.st_ino, rows.st_mtime_ns)
    places = job.plan.refs(unit)
    if job.members is not None:
        places = np.memmap(job.members, "<u8", "r")[places].astype(np.int64)
    return [table[place] for place in places.tolist()]


@lru_cache(maxsize=4)
def _table(folder: Path, _inode: int, _mtime_ns: int) -> RefTable:
    """The refs in a folder, mapped once: by the file they are in, since a later build has the same folder."""
    return RefTable(folder)


def stored_fields(job: SplitJob, raw: RawSample) -> tuple[list[bytes], StoredImage]:
    """The stored bytes of one sample, in the order of `job.suffixes`.

    Raises:
        SampleError: it cannot be converted.
    """
    from packer.transforms.image import store_image  # noqa: PLC0415 - torch and cv2 load in workers, not in the parent

    image = store_image(raw.image, job.codec, job.recipe)
    blobs = [image.data]
    if job.classes is not None:
        blobs.append(b"%d" % raw.ref.label)
    if job.recipe.meta:
        height, width = image.size
        document: dict[str, Any] = {"name": raw.ref.name, "height": height, "width": width}
        if job.classes is not None:
            document["class"] = job.classes[raw.ref.label]
        blobs.append(json.dumps(document, sort_keys=True).encode())
    if max(map(len, blobs)) > MAX_FIELD:
        raise SampleError("too-large", f"a stored field has at most {MAX_FIELD} bytes (--encode, --resize)")
    return blobs, image


def _convert(job: SplitJob, ref: Ref) -> tuple[list[bytes], StoredImage, RawSample]:
    raw = job.source.read(ref)
    blobs, image = stored_fields(job, raw)
    return blobs, image, raw
