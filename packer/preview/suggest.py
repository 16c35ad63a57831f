"""What a source's figures suggest: size, codec and shards, with the reason. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from packer_reader.sizes import format_bytes

if TYPE_CHECKING:
    from packer.preview.survey import Survey
    from packer.recipe import Recipe

__all__ = ["Speeds", "Suggestion", "codec_for", "shards_for", "size_for"]

_SIDES = {"boxes": (640, "longer"), "mask": (512, "shorter"), "image": (256, "shorter")}
"""What training usually takes: pixels of which side."""
_WORTH = 1.25
"""From so many times that size on it is worth resizing."""
_FASTER = 1.5
"""So many times as fast raw pixels must be read: they take several times the room."""
_QUICK = 2.0
"""Seconds of an epoch that nobody needs to shorten."""
_SAMPLE = 5e-6
"""Seconds that each sample takes besides, however small it is (`scripts/bench read --part tokens`, and of 1 kB)."""
_SHARDS = 64
"""Shards that any number of ranks and workers divides well; fewer for small sets."""
_SMALLEST, _LARGEST = 16_000_000, 1_000_000_000


@dataclass(frozen=True)
class Suggestion:
    """An option, its value, and why."""

    option: str
    value: str
    why: str


@dataclass(frozen=True)
class Speeds:
    """What this machine was seen to do with samples as they would be stored."""

    encoded_bytes: float
    """Of a sample, mean."""
    raw_bytes: float
    other_bytes: float
    """Of what belongs to it: label, mask, boxes."""
    decoded: float
    """Encoded samples decoded a second, by all CPUs."""
    disk: float
    """Bytes a second that the disk gives, of the source's files, which are not in memory; 0 where that is not known."""
    copied: float
    """Bytes a second that memory is copied with."""
    room: int
    """Bytes of memory that may hold files."""


def size_for(kind: str, found: Survey, recipe: Recipe) -> list[Suggestion]:
    """`--resize`, where most images are well above what training takes.

    Args:
        kind: `boxes`, `mask` or `image`: what the samples are for.
        found: their sizes.
        recipe: what was asked for.
    """
    side, which = _SIDES[kind]
    if recipe.resize is not None or not found.sides or found.sides[which]["50"] < _WORTH * side:
        return []
    seen = found.sides[which]
    why = f"{which} sides are {seen['5']} to {seen['95']} pixels, and training on {_TRAINED[kind]} takes about {side}"
    fit = [] if which == "shorter" else [Suggestion("--fit", which, "the longer side becomes that long")]
    return [Suggestion("--resize", str(side), why), *fit]


_TRAINED = {"boxes": "boxes", "mask": "masks", "image": "crops of 224"}


def codec_for(speeds: Speeds, samples: int, codec: str) -> Suggestion | None:
    """`--encode raw`, where pixels come faster from memory or the disk than they are decoded; or why not.

    Args:
        speeds: as measured.
        samples: of the source.
        codec: that they would be stored in.

    Returns:
        None where it depends on the disk, whose speed is not known.
    """
    encoded, raw = (_Way.of(speeds, samples, size) for size in (speeds.encoded_bytes, speeds.raw_bytes))
    if encoded.rate is None or raw.rate is None:
        return None
    decoded = min(encoded.rate, speeds.decoded)
    quick = samples / decoded <= _QUICK
    why = (
        f"{codec}: {format_bytes(encoded.bytes)}, {decoded:,.0f} samples/s by all CPUs; raw: "
        f"{format_bytes(raw.bytes)}, which {raw.where}: {raw.rate:,.0f} samples/s"
    )
    if quick:
        why = f"an epoch of {samples:,} samples is decoded in {samples / decoded:.1f} s anyway"
    return Suggestion("--encode", "raw" if raw.rate >= _FASTER * decoded and not quick else "keep", why)


@dataclass(frozen=True)
class _Way:
    """Samples of one size, and where they come from."""

    bytes: int
    rate: float | None
    """Samples a second, before anything is decoded."""
    where: str

    @classmethod
    def of(cls, speeds: Speeds, samples: int, size: float) -> Self:
        """All samples at this size in bytes."""
        total = round(samples * (size + speeds.other_bytes))
        if total <= speeds.room:
            return cls(total, 1 / (size / speeds.copied + _SAMPLE), "memory can hold")
        rate = 1 / (size / speeds.disk + _SAMPLE) if speeds.disk else None
        return cls(total, rate, f"memory cannot hold, and the disk gave {format_bytes(round(speeds.disk))}/s")


def shards_for(store_bytes: float) -> Suggestion:
    """`--size`, so that there are shards enough for all readers, and not too many files.

    >>> shards_for(4e9).value
    '64MB'
    """
    size = _SMALLEST
    while size < _LARGEST and size * _SHARDS < store_bytes:
        size *= 2
    count = max(1, -(-round(store_bytes) // size))
    why = f"a store of {format_bytes(round(store_bytes))} in {count:,} shard{'s' * (count > 1)}"
    return Suggestion("--size", f"{size // 10**6}MB", why)
