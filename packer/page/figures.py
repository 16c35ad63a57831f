"""What a page shows of a store, as plain numbers: histograms, classes, what was skipped, how well it mixes."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from packer_reader import shuffle_quality
from packer_reader.format.names import ERRORS, line_text
from packer_reader.sizes import format_bytes
from packer_reader.summary import describe

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from packer_reader.stores.base import Store

__all__ = ["figures", "histogram", "values_of"]

_BINS = 32
_COLUMNS = {
    "height": "Stored height, pixels",
    "width": "Stored width, pixels",
    "bytes": "Stored bytes of a sample",
    "source_size": "Bytes of the source file",
    "tokens": "Tokens of a document",
}
"""Number columns that are shown as histograms, and their captions."""
_CLASSES = 40
"""Classes that are shown as bars; of more the largest and the smallest, and all as a curve."""
_NAMES = 50
"""Skipped samples that are listed of each class of errors."""
_CHUNK = 1 << 20
_SMALLEST_BUFFER = 64


def figures(
    store: Store, batch_size: int, shuffle_buffer: str, heard: Callable[[int], None] = lambda _: None
) -> dict[str, Any]:
    """All that the page says, as one JSON object.

    Args:
        store: whose page.
        batch_size: that shuffling is judged for.
        shuffle_buffer: the one that is marked, as `StreamDataset` takes it.
        heard: told how many values of columns were read since it was told last, of `values_of`.

    Raises:
        PackerError: the store is damaged, or an argument cannot be used.
    """
    found = describe(store)
    return found | {
        "size": format_bytes(store.manifest.bytes),
        "classes": _classes(store),
        "histograms": [
            histogram(store.columns.numbers(name), name, text, heard)
            for name, text in _COLUMNS.items()
            if name in store.columns
        ],
        "skipped": _skipped(store),
        "shuffling": _shuffling(store, batch_size, shuffle_buffer),
    }


def _classes(store: Store) -> dict[str, Any] | None:
    """Names and counts by index, the places of those that are drawn, and all counts in falling order."""
    names, counts = store.classes, store.manifest.statistics.get("class_counts")
    if counts is None:
        return None
    order = sorted(range(len(counts)), key=lambda index: (-counts[index], index))
    drawn = order if len(order) <= _CLASSES else [*order[: _CLASSES // 2], *order[-_CLASSES // 2 :]]
    return {
        "names": [line_text(names[index]) if names is not None else str(index) for index in range(len(counts))],
        "counts": counts,
        "drawn": drawn,
        "falling": [counts[index] for index in order],
        "most": max(1, *counts) if counts else 1,
    }


def values_of(store: Store) -> int:
    """How many values of columns a page is made of."""
    return len(store) * sum(name in store.columns for name in _COLUMNS)


def histogram(column: npt.NDArray[Any], name: str, caption: str, heard: Callable[[int], None]) -> dict[str, Any]:
    """Counts of values between edges; the column is looked at in pieces, as it may be larger than memory."""
    parts = [column[start : start + _CHUNK] for start in range(0, len(column), _CHUNK)]
    low, high = min(int(part.min()) for part in parts), max(int(part.max()) for part in parts)
    width = -(-(high - low + 1) // _BINS)  # whole, or equal shares of whole numbers would look like a comb
    edges = np.arange(low, high + 1 + width, width)
    counts = np.zeros(len(edges) - 1, np.int64)
    for part in parts:
        counts += np.histogram(part, edges)[0]
        heard(len(part))
    found = {"name": name, "caption": caption, "low": low, "high": high}
    return found | {"edges": edges.tolist(), "counts": counts.tolist()}


def _skipped(store: Store) -> list[dict[str, Any]]:
    """By class of errors: how many, and some with their reasons."""
    some: dict[str, list[dict[str, str]]] = {}
    with suppress(OSError), (store.path / ERRORS).open(encoding="utf-8", errors="replace") as file:
        for line in islice(file, 1_000_000):
            with suppress(ValueError, KeyError):
                problem = json.loads(line)
                names = some.setdefault(problem["class"], [])
                if len(names) < _NAMES:
                    names.append({"name": line_text(str(problem["name"])), "reason": line_text(str(problem["reason"]))})
    counts = sorted(store.manifest.errors.items(), key=lambda pair: (-pair[1], pair[0]))
    return [{"class": name, "count": count, "samples": some.get(name, [])} for name, count in counts]


def _shuffling(store: Store, batch_size: int, chosen: str) -> dict[str, Any]:
    """Different blocks in a batch, of what a true permutation has, by buffer; see `shuffle_quality`."""

    def at(buffer: int | str, block: int | None) -> dict[str, Any]:
        quality = shuffle_quality(store, batch_size=batch_size, shuffle_buffer=buffer, block=block)
        return asdict(quality) | {"share": min(1.0, quality.blocks_per_batch / quality.blocks_at_best)}

    marked, sizes, size = at(chosen, None), list[int](), min(_SMALLEST_BUFFER, len(store))
    while size < len(store):
        sizes.append(size)
        size *= 2
    # Blocks of one size, so that the points can be compared.
    curve = [at(buffer, marked["block"]) for buffer in [*sizes, len(store)]]
    return {"batch_size": batch_size, "chosen": marked | {"asked": chosen}, "curve": curve}
