"""Fields beside the image and its label: their kind alone decides codec, stored type and how geometry treats them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["EXTRA_KINDS", "Extra", "ExtraKind"]

ExtraKind = Literal["mask", "depth", "boxes", "text", "json", "number"]
_CODECS: dict[str, str] = {
    "mask": "png",
    "depth": "png",
    "boxes": "json",
    "text": "txt",
    "json": "json",
    "number": "json",
}
EXTRA_KINDS = tuple(_CODECS)


@dataclass(frozen=True, slots=True)
class Extra:
    """A field that every sample has, beside the image and its label."""

    name: str
    """What batches call it, `[a-z0-9_]+`."""
    kind: ExtraKind
    dtype: str = ""
    """Of a number: `int64` or `float64`. Of a mask it is known when all are stored."""

    @property
    def codec(self) -> str:
        """How its bytes are decoded."""
        return _CODECS[self.kind]

    @property
    def suffix(self) -> str:
        """What stands behind the key in a member's name."""
        return self.name if self.name == self.codec else f"{self.name}.{self.codec}"

    @property
    def column(self) -> tuple[str, str] | None:
        """Name and dtype of the column that it has as well: a number's values, the bits of a mask."""
        if self.kind == "number":
            return self.name, {"int64": "<i8", "float64": "<f8"}[self.dtype]
        return (f"{self.name}_bits", "|u1") if self.kind in {"mask", "depth"} else None
