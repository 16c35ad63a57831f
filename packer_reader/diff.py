"""What differs between two stores: in what was asked for, and in what they hold."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer_reader.format.names import line_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from packer_reader.stores.base import Store

__all__ = ["compare_stores", "difference_lines"]

Words = npt.NDArray[np.uint64]

_TOLD = 1 << 16
"""Samples between two words of progress."""
_SHOWN = 10
"""Names of each kind that are listed."""


def compare_stores(one: Store, other: Store, heard: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
    """The differences in one JSON object.

    Samples are the same where they have one source name, stored fields with equal CRC-32 and equal labels. Names are
    compared by 64 bits of their hash.

    Args:
        one: a store.
        other: the other one.
        heard: told how many names have been read since it was told last.

    Returns:
        `same` (whether both hold the same samples in the same order, by their content digests); `recipe`, `versions`
        and `fields`, each with both values of what differs; `classes` that only one has; and `samples`: counts of
        `equal`, `changed`, `only_first` and `only_second`, with some names of each, or None where names say nothing.
    """
    a, b = one.manifest, other.manifest
    fields = [{f.name: f"{f.kind}, {f.codec}, {f.dtype} {list(f.shape)}" for f in m.fields} for m in (a, b)]
    classes = [set(m.classes or ()) for m in (a, b)]
    return {
        "stores": [str(one.path), str(other.path)],
        "same": a.content_digest == b.content_digest,
        "count": [a.samples, b.samples],
        "recipe": _pairs(a.recipe, b.recipe),
        "versions": _pairs(a.versions, b.versions),
        "fields": _pairs(*fields),
        "classes": {"only_first": sorted(classes[0] - classes[1]), "only_second": sorted(classes[1] - classes[0])},
        "samples": _samples(one, other, heard),
    }


def _pairs(one: Any, other: Any) -> dict[str, list[Any]]:
    return {
        name: [one.get(name), other.get(name)]
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    }


def _samples(one: Store, other: Store, heard: Callable[[int], None]) -> dict[str, Any] | None:
    names = _hashes(one, heard), _hashes(other, heard)
    if any(len(np.unique(found)) < len(found) for found in names):
        return None  # sequences of several documents, or a store without names
    _, first, second = np.intersect1d(names[0], names[1], assume_unique=True, return_indices=True)
    changed = _contents(one)[first] != _contents(other)[second]
    alone = [np.setdiff1d(np.arange(len(found)), both) for found, both in zip(names, (first, second), strict=True)]
    found = {"changed": (one, np.sort(first[changed])), "only_first": (one, alone[0]), "only_second": (other, alone[1])}
    return {
        "equal": int((~changed).sum()),
        **{name: len(numbers) for name, (_, numbers) in found.items()},
        "names": {
            name: [store.source(number) for number in numbers[:_SHOWN].tolist()]
            for name, (store, numbers) in found.items()
        },
    }


def _hashes(store: Store, heard: Callable[[int], None]) -> Words:
    names = store.columns.strings("name")

    def number(place: int) -> int:
        if place % _TOLD == 0:
            heard(min(_TOLD, len(store) - place))
        text = names[place]
        return int.from_bytes(
            hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little"
        )

    return np.fromiter(map(number, range(len(store))), np.uint64, len(store))


def _contents(store: Store) -> Words:
    """A number for what each sample holds, by the CRC-32 of its fields, whichever order they are stored in."""
    order = np.argsort([field.suffix for field in store.manifest.fields])
    found = np.zeros(len(store), np.uint64)
    for shard in range(store.manifest.shards):
        index, first = store.index(shard), store.first(shard)
        for field in order.tolist():
            part = found[first : first + len(index.key)]
            part *= np.uint64(0x9E3779B97F4A7C15)  # the products wrap around
            part += np.asarray(index.crc[field], np.uint64)
    return found


def difference_lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    first, second = found["stores"]
    lines = [
        f"first     {first!r}: {found['count'][0]:,} samples",
        f"second    {second!r}: {found['count'][1]:,} samples",
    ]
    for kind in ("recipe", "versions", "fields"):
        label = kind.removesuffix("s")
        lines += [f"{label:9} {name}: {old!r} and {new!r}" for name, (old, new) in found[kind].items()]
    for which in ("only_first", "only_second"):
        lines += [f"class     {line_text(name)!r} {_WORDS[which]}" for name in found["classes"][which]]
    samples = found["samples"]
    if samples is None:
        lines.append("samples   cannot be told apart by their names: only the contents as a whole are compared")
    else:
        lines.append(f"samples   {samples['equal']:,} are equal")
        for kind, words in _WORDS.items():
            names = "".join(f", {name!r}" for name in samples["names"][kind])
            more = ", ..." if samples[kind] > len(samples["names"][kind]) else ""
            lines += [f"          {samples[kind]:,} {words}{names}{more}"] if samples[kind] else []
    lines.append(
        "content   the same, in the same order" if found["same"] else "content   not the same in the same order"
    )
    return lines


_WORDS = {"changed": "differ", "only_first": "only in the first", "only_second": "only in the second"}
