"""From finished shards to a whole store: columns, class list, errors, statistics, and the manifest last."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from packer.output.columns import ColumnFiles
from packer.output.sequences import TokenStatistics
from packer.output.statistics import Statistics
from packer.rows import read_rows
from packer.stored import public_name
from packer_reader.errors import SourceError, UsageError
from packer_reader.format.columns import COLUMN_MAGIC, canonical_json, frame_bytes
from packer_reader.format.digest import ContentDigest
from packer_reader.format.fields import SOURCE_CODECS, FieldSpec
from packer_reader.format.manifest import Manifest, manifest_bytes
from packer_reader.format.names import (
    CLASSES,
    DATA_FILE,
    ERRORS,
    INFO,
    MANIFEST,
    SHARDS,
    column_file,
    line_text,
    shard_file,
    tokenizer_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from packer.output.journal import Journal, ShardDone
    from packer.rows import UnitRows
    from packer.sample import Problem
    from packer.sinks.base import StoreTarget
    from packer.sources.base import Listing

__all__ = ["StoreFacts", "finish_store"]

_WIDE = {("png", 16): "png16"}
"""What counts as the stored codec itself, beside its own name."""


@dataclass(frozen=True)
class StoreFacts:
    """What the manifest says beyond what the units know."""

    target: StoreTarget
    split: str | None
    listing: Listing
    problems: Sequence[Problem]
    """Samples of this split that were refused while listing."""
    versions: Mapping[str, str]
    records: int | None
    """LMDB values; None for tar."""


@dataclass
class _Totals:
    """What a pass over the rows of all units adds up."""

    statistics: Statistics | TokenStatistics
    digest: ContentDigest
    errors: Counter[str]
    reencoded: Counter[str] = field(default_factory=Counter)
    stored: int = 0
    """Bytes of all fields."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column name to kind."""
    bits: dict[str, int] = field(default_factory=dict)
    """Of the widest mask of a field."""
    sides: dict[str, list[int]] = field(default_factory=dict)
    """Of further images, by column: the smallest and the largest side."""


def finish_store(facts: StoreFacts, journal: Journal, shards: Sequence[ShardDone]) -> Manifest:
    """Write everything of a store but its shards.

    Raises:
        SourceError: no sample was written.
    """
    folder, recipe = facts.target.folder, facts.target.job.recipe
    written = sum(done.written for done in journal.units.values())
    samples = sum(done.samples for done in journal.units.values())
    skipped = sum(done.skipped for done in journal.units.values()) + len(facts.problems)
    if not samples:
        reason = f"none of the {skipped} samples could be converted (the first: {_first(facts, journal)})"
        raise SourceError(f"{reason}: no store was written")
    totals = _pass_over_rows(facts, journal, samples)
    _write_shard_table(folder, recipe.container, shards)
    _write_lists(facts, shards)
    listing = facts.listing
    manifest = Manifest(
        kind=recipe.container,
        prefix=facts.target.prefix,
        split=facts.split,
        samples=samples,
        records=facts.records if facts.records is not None else sum(done.records for done in journal.units.values()),
        shards=len(shards),
        bytes=totals.stored,
        fields=_fields(facts, totals),
        classes=facts.target.job.classes,
        columns=totals.columns,
        shuffled=recipe.shuffle,
        content_digest=totals.digest.hexdigest(),
        recipe=recipe.to_json(),
        recipe_digest=hashlib.sha256(canonical_json(recipe.to_json())).hexdigest(),
        versions=facts.versions,
        source={
            "type": listing.type,
            "files": listing.found,
            "bytes": listing.bytes,
            "digest": listing.digest,
            "ignored": dict(listing.ignored),
        },
        counts={"found": written + skipped, "written": written, "skipped": skipped},
        errors=dict(totals.errors),
        reencoded=dict(totals.reencoded),
        statistics=totals.statistics.to_json(),
        files=_hash_files(folder, totals.columns, facts),
    )
    (folder / MANIFEST).write_bytes(manifest_bytes(manifest))
    return manifest


def _pass_over_rows(facts: StoreFacts, journal: Journal, samples: int) -> _Totals:
    """Write the columns and errors.jsonl, and add up the rest."""
    folder, job = facts.target.folder, facts.target.job
    text = job.recipe.text
    totals = _Totals(
        TokenStatistics(text)
        if text
        else Statistics(1 if job.recipe.gray else 3, job.recipe.bits, len(job.classes or ())),
        ContentDigest(job.suffixes),
        Counter(problem.failure for problem in facts.problems),
    )
    columns: ColumnFiles | None = None
    with (folder / ERRORS).open("wb") as lines:
        for problem in facts.problems:
            shown = replace(problem, name=public_name(problem.name, job.recipe.source_names))
            lines.write(canonical_json(shown.to_json()) + b"\n")
        for unit in _all_rows(facts, journal):
            rows = totals.statistics.derived(unit)
            columns = columns or ColumnFiles(
                folder, rows, samples, sum(done.name_bytes for done in journal.units.values())
            )
            columns.add(rows)
            totals.digest.add(rows.index)
            totals.statistics.add(rows)
            totals.stored += int(rows.columns["bytes"].sum())
            if job.recipe.text is None:
                _add_pictures(facts, totals, rows)
            for line in rows.meta["problems"]:
                lines.write(canonical_json(line) + b"\n")
                totals.errors[line["class"]] += 1
    assert columns is not None
    columns.close()
    totals.columns = columns.kinds
    return totals


def _add_pictures(facts: StoreFacts, totals: _Totals, rows: UnitRows) -> None:
    """What only stores of pictures sum up."""
    job = facts.target.job
    copied = facts.listing.type == "store"  # whose samples say what they were before that store
    for codec, count in Counter([] if copied else rows.columns["source_codec"].tolist()).items():
        if SOURCE_CODECS[codec] not in {job.codec, _WIDE.get((job.codec, job.recipe.bits))}:
            totals.reencoded[f"{SOURCE_CODECS[codec]}>{job.codec}"] += count
    for extra in job.extras:
        if extra.kind in {"mask", "depth"} and rows.columns[f"{extra.name}_bits"].size:
            widest = int(rows.columns[f"{extra.name}_bits"].max())
            totals.bits[extra.name] = max(totals.bits.get(extra.name, 8), widest)
        if extra.kind == "image":
            for column, _ in extra.columns:
                known = totals.sides.get(column, []) + rows.columns[column].tolist()
                totals.sides[column] = [min(known), max(known)] if known else []


def _first(facts: StoreFacts, journal: Journal) -> str:
    if facts.problems:
        return f"{facts.problems[0].name!r}: {facts.problems[0].reason}"
    return next((done.problem for _, done in sorted(journal.units.items()) if done.problem), "the source is empty")


def _all_rows(facts: StoreFacts, journal: Journal) -> Iterator[UnitRows]:
    job = facts.target.job
    for unit in sorted(journal.units):
        yield read_rows(job.rows_path(unit), job.suffixes)


def _fields(facts: StoreFacts, totals: _Totals) -> tuple[FieldSpec, ...]:
    job, statistics = facts.target.job, totals.statistics
    if isinstance(statistics, TokenStatistics):
        return statistics.fields()
    channels = 1 if job.recipe.gray else 3
    largest = (statistics.max_height, statistics.max_width, channels)
    shape = largest if statistics.same_size else (None, None, channels)
    fields = [FieldSpec("image", "image", job.codec, job.codec, job.recipe.dtype, shape, largest)]
    if job.labelled:
        fields.append(FieldSpec("label", "label", "cls", "cls", "int64"))
    for extra in job.extras:
        if extra.kind in {"mask", "depth"}:
            dtype = f"uint{totals.bits[extra.name]}"
            fields.append(FieldSpec(extra.name, extra.kind, extra.suffix, extra.codec, dtype, shape[:2], largest[:2]))
        elif extra.kind == "image":
            sides = [totals.sides[column] for column, _ in extra.columns]
            own = (*(most if least == most else None for least, most in sides), channels)
            most_of = (*(most for _, most in sides), channels)
            fields.append(FieldSpec(extra.name, "image", extra.suffix, extra.codec, job.recipe.dtype, own, most_of))
        else:
            fields.append(FieldSpec(extra.name, extra.kind, extra.suffix, extra.codec, extra.dtype))
    if job.recipe.meta:
        fields.append(FieldSpec("meta", "json", "json", "json", ""))
    return tuple(fields)


def _write_shard_table(folder: Path, container: str, shards: Sequence[ShardDone]) -> None:
    def hashes(texts: list[str]) -> Any:
        return np.frombuffer(b"".join(bytes.fromhex(t) for t in texts), np.uint8).reshape(-1, 32)

    arrays = {
        "samples": np.array([s.samples for s in shards], "<u8"),
        "index_bytes": np.array([s.index_bytes for s in shards], "<u8"),
        "index_sha256": hashes([s.index_sha256 for s in shards]),
    }
    if container == "tar":
        arrays |= {"bytes": np.array([s.bytes for s in shards], "<u8"), "sha256": hashes([s.sha256 for s in shards])}
    (folder / SHARDS).write_bytes(frame_bytes(COLUMN_MAGIC, {"column": "shards", "kind": "table"}, arrays))


def _write_lists(facts: StoreFacts, shards: Sequence[ShardDone]) -> None:
    folder, job = facts.target.folder, facts.target.job
    if job.recipe.text is not None and job.recipe.text.file:
        copied = folder / tokenizer_file(job.recipe.text.tokenizer)
        shutil.copyfile(job.recipe.text.file, copied)
        if _hash_file(copied)["sha256"] != job.recipe.text.digest:
            raise UsageError(f"{job.recipe.text.file!r} has changed since the build began: put it back, or start over")
    if job.classes is not None:
        text = "".join(f"{line_text(name)}\n" for name in job.classes)
        (folder / CLASSES).write_text(text, encoding="utf-8")
    if job.recipe.container == "tar":
        split = {
            "name": facts.target.prefix,
            "num_samples": sum(s.samples for s in shards),
            "filenames": [shard_file(facts.target.prefix, s.number) for s in shards],
            "shard_lengths": [s.samples for s in shards],
        }
        document = {"splits": {facts.target.prefix: split}}
        (folder / INFO).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="ascii")


def _hash_files(folder: Path, columns: Mapping[str, str], facts: StoreFacts) -> dict[str, dict[str, Any]]:
    names = [ERRORS, SHARDS, *(column_file(name) for name in columns)]
    names += [CLASSES] if facts.target.job.classes is not None else []
    text = facts.target.job.recipe.text
    names += [tokenizer_file(text.tokenizer)] if text is not None and text.file else []
    names.append(DATA_FILE if facts.target.job.recipe.container == "lmdb" else INFO)
    return {name: _hash_file(folder / name) for name in sorted(names)}


def _hash_file(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}
