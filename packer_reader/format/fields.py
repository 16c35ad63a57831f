"""Fields: what every sample of a store has, and what a reader must know to decode it (specification, section 8)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CODECS", "KINDS", "FieldSpec"]

KINDS = frozenset(
    {
        "image",
        "mask",
        "depth",
        "boxes",
        "points",
        "volume",
        "tokens",
        "text",
        "label",
        "number",
        "audio",
        "json",
        "bytes",
    }
)
CODECS = frozenset({"jpg", "png", "webp", "npy", "cls", "txt", "json", "msg"})


@dataclass(frozen=True)
class FieldSpec:
    """One field that every sample of the store has."""

    name: str
    """What batches call it: `image`, `label`."""
    kind: str
    """One of `KINDS`; it alone decides how the field is treated."""
    suffix: str
    """What stands behind the key in a member's name, and the key in an LMDB map."""
    codec: str
    """How the bytes are decoded: the last part of the suffix."""
    dtype: str
    """numpy name of the decoded elements, `uint8`; empty for text and json."""
    shape: tuple[int | None, ...] = ()
    """Decoded shape, height first; None where samples differ."""
    maximum: tuple[int, ...] = ()
    """Largest decoded side per dimension, for slots; equal to the shape where that is fixed."""
