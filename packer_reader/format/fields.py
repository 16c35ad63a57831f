"""Fields: what every sample of a store has, and what a reader must know to decode it (specification, section 8)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CODECS", "KINDS", "MAX_SEQUENCE", "ROWS", "SOURCE_CODECS", "FieldSpec", "sequence_fields"]

KINDS = frozenset(
    {
        "image",
        "mask",
        "depth",
        "boxes",
        "points",
        "volume",
        "tokens",
        "bounds",
        "text",
        "label",
        "number",
        "audio",
        "json",
        "bytes",
    }
)
CODECS = frozenset({"jpg", "png", "webp", "npy", "rows", "cls", "txt", "json", "msg"})
ROWS = "rows"
"""Codec of a field whose samples are rows of an array that a record holds for a block of them."""
MAX_SEQUENCE = 1 << 24
"""Tokens of a sequence."""

SOURCE_CODECS = (
    "other", "jpg", "png", "webp", "gif", "bmp", "dib", "tiff", "ppm", "avif", "jp2", "png16", "tiff16", "ppm16",
    "jp216", "pixels", "pixels16",
)  # fmt: skip
"""What a source image was, by the number in the column `source_codec`; never reordered, new ones come at the end."""


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
    """How the bytes are decoded: the last part of the suffix; or `rows`, and the suffix ends in npy."""
    dtype: str
    """numpy name of the decoded elements, `uint8`; empty for text and json."""
    shape: tuple[int | None, ...] = ()
    """Decoded shape, height first; None where samples differ."""
    maximum: tuple[int, ...] = ()
    """Largest decoded side per dimension, for slots; equal to the shape where that is fixed."""


def sequence_fields(dtype: str, seq_len: int, most_bounds: int) -> tuple[FieldSpec, ...]:
    """What a sequence of packed documents has, in stored order.

    Args:
        dtype: of the tokens.
        seq_len: tokens of a sequence, padding included.
        most_bounds: largest number of document boundaries that a sequence has, both ends included.
    """
    return (
        FieldSpec("tokens", "tokens", "tokens.npy", ROWS, dtype, (seq_len,), (seq_len,)),
        FieldSpec("cu_seqlens", "bounds", "cu_seqlens.npy", ROWS, "int32", (None,), (most_bounds,)),
        FieldSpec("n_valid", "number", "n_valid.npy", ROWS, "int64"),
    )
