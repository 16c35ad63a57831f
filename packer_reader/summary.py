"""What a store says of itself, as JSON and as lines for people."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packer_reader.errors import NotFoundError
from packer_reader.format.names import line_text
from packer_reader.sizes import format_bytes
from packer_reader.stores.open import open_store, store_folders

if TYPE_CHECKING:
    from packer_reader.stores.base import Store

__all__ = ["describe", "describe_sample", "find_sample", "inspect_text", "sample_lines", "summary_lines"]


def describe(store: Store) -> dict[str, Any]:
    """The store in one JSON object."""
    m = store.manifest
    fields = [
        {"name": f.name, "kind": f.kind, "codec": f.codec, "dtype": f.dtype, "shape": list(f.shape)} for f in m.fields
    ]
    return {
        "store": str(store.path),
        "kind": m.kind,
        "split": m.split,
        "samples": m.samples,
        "records": m.records,
        "shards": m.shards,
        "bytes": m.bytes,
        "fields": fields,
        "classes": list(m.classes) if m.classes else None,
        "columns": dict(m.columns),
        "shuffled": m.shuffled,
        "content_digest": m.content_digest,
        "counts": dict(m.counts),
        "errors": dict(m.errors),
        "reencoded": dict(m.reencoded),
        "statistics": dict(m.statistics),
        "source": dict(m.source),
        "recipe": dict(m.recipe),
        "versions": dict(m.versions),
    }


def summary_lines(store: Store) -> list[str]:
    """The same for people, some twenty lines."""
    m = store.manifest
    shape = {f.name: "x".join("?" if side is None else str(side) for side in f.shape) for f in m.fields}
    parts = "shards" if m.kind == "tar" else "index runs"
    lines = [
        f"store     {str(store.path)!r} ({m.kind}{f', split {m.split}' if m.split else ''})",
        (
            f"samples   {m.samples:,} in {m.shards:,} {parts}, {format_bytes(m.bytes)}, "
            f"{m.bytes / max(1, m.samples):,.0f} bytes a sample"
        ),
        f"order     {'shuffled' if m.shuffled else 'as in the source'}, seed {m.recipe.get('seed')}",
    ]
    lines += [f"field     {f.name}: {f.kind}, {f.codec}, {f.dtype} {shape[f.name]}".rstrip() for f in m.fields]
    if m.classes is not None:
        lines += _class_lines(store)
    image = m.statistics.get("image")
    if image:
        lines.append(
            f"mean      {' '.join(f'{v:.4f}' for v in image['mean'])}   std "
            f"{' '.join(f'{v:.4f}' for v in image['std'])}   (pixels / 255)"
        )
    lines += _token_lines(store)
    counts = m.counts
    lines.append(
        f"source    {m.source.get('type')}, {counts['found']:,} found = {counts['written']:,} written + "
        f"{counts['skipped']:,} skipped"
    )
    lines += [f"skipped   {count:,} {failure}" for failure, count in sorted(m.errors.items())]
    lines += [f"recoded   {count:,} {codecs.replace('>', ' to ')}" for codecs, count in sorted(m.reencoded.items())]
    lines.append(f"content   {m.content_digest}")
    return lines


def _token_lines(store: Store) -> list[str]:
    text, sums = store.manifest.recipe.get("text"), store.manifest.statistics.get("tokens")
    if not text or not sums:
        return []
    room = max(1, sums["tokens"] + sums["padding"])
    made = text["tokenizer"] + (f" {text['digest'][:12]}" if text["digest"] else "")
    ends = f"bos {text['bos']}, eos {text['eos']}, pad {text['pad']}"
    share = f"{100 * sums['padding'] / room:.2f} % padding"
    return [
        f"tokenizer {made}, ids 0 to {text['vocabulary'] - 1}, {ends}",
        f"tokens    {sums['tokens']:,} of {sums['documents']:,} documents, {sums['cut']:,} cut, {share}",
    ]


def _class_lines(store: Store) -> list[str]:
    classes = store.manifest.classes or ()
    counts = store.manifest.statistics.get("class_counts", [0] * len(classes))
    shown = [
        f"class     {index}: {line_text(name)} ({count:,})"
        for index, (name, count) in enumerate(zip(classes, counts, strict=True))
    ]
    more = [f"          ... and {len(shown) - 10} more"] if len(shown) > 10 else []
    return [f"classes   {len(classes):,}", *shown[:10], *more]


def find_sample(store: Store, text: str) -> int:
    """A sample's number from what a user typed: a number, or a source name.

    Raises:
        NotFoundError: there is no such sample.
    """
    try:
        return store.find(text)
    except NotFoundError:
        if re.fullmatch("-?[0-9]{1,18}", text):
            return store.number(int(text))
        raise


def describe_sample(store: Store, number: int) -> dict[str, Any]:
    """One sample in one JSON object: where it came from, its columns, and its fields' sizes."""
    blobs = store.encoded(number)
    columns = {}
    for name in store.columns:
        value = store.columns[name][number]
        columns[name] = value if isinstance(value, str) else _plain(value)
    label = columns.get("label")
    classes = store.classes
    return {
        "sample": number,
        "source": store.source(number),
        "columns": columns,
        "class": classes[label] if classes is not None and isinstance(label, int) else None,
        "fields": {suffix: len(blob) for suffix, blob in blobs.items()},
    }


def _plain(value: Any) -> Any:
    array = np.asarray(value)
    return array.tobytes().hex() if array.ndim else array.item()


def sample_lines(store: Store, number: int) -> list[str]:
    """One sample for people."""
    found = describe_sample(store, number)
    lines = [f"sample    {number}", f"source    {found['source']!r}"]
    if found["class"] is not None:
        lines.append(f"class     {found['columns']['label']}: {line_text(found['class'])}")
    lines += [f"field     {suffix}: {size:,} bytes" for suffix, size in found["fields"].items()]
    lines += [f"column    {name}: {value}" for name, value in found["columns"].items() if name not in {"label", "name"}]
    return lines


def inspect_text(path: str, split: str | None, sample: str | None, *, as_json: bool) -> str:
    """What the `inspect` commands print.

    Args:
        path: a store, or a folder of splits.
        split: one of them; None takes all.
        sample: number or source name of one sample, instead of the whole.
        as_json: one JSON object instead of lines.

    Raises:
        PackerError: there is no such store, split or sample.
    """
    if sample is not None:
        store = open_store(path, split)
        number = find_sample(store, sample)
        return json.dumps(describe_sample(store, number)) if as_json else "\n".join(sample_lines(store, number))
    stores = [open_store(f) for f in store_folders(Path(path))] if split is None else [open_store(path, split)]
    if not as_json:
        return "\n\n".join("\n".join(summary_lines(store)) for store in stores)
    found = [describe(store) for store in stores]
    return json.dumps(found[0] if len(found) == 1 else {"stores": found})
