"""Fields beside the image and its label: their kind alone decides codec, stored type and how geometry treats them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from packer_reader.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COLUMNS", "EXTRA_KINDS", "Extra", "PICTURES", "ExtraKind", "check_fields", "stored_as"]

ExtraKind = Literal["image", "mask", "depth", "boxes", "text", "json", "number"]
_CODECS: dict[str, str] = {
    "image": "",
    "mask": "png",
    "depth": "png",
    "boxes": "json",
    "text": "txt",
    "json": "json",
    "number": "json",
}
EXTRA_KINDS = tuple(_CODECS)
PICTURES = frozenset({"image", "mask", "depth"})
"""Kinds whose values are files of pictures."""
COLUMNS = frozenset(
    "bytes height label moments name shards source_codec source_hash source_mtime_ns source_size width".split()  # noqa: SIM905
)
"""Columns that every store has, and its shard table, which lies beside them."""
_NAME = re.compile("[a-z0-9_]{1,32}")
_TAKEN = frozenset({"id", "valid"})
"""Names of a batch's own values."""


@dataclass(frozen=True, slots=True)
class Extra:
    """A field that every sample has, beside the image and its label."""

    name: str
    """What batches call it, `[a-z0-9_]+`."""
    kind: ExtraKind
    dtype: str = ""
    """Of a number: `int64` or `float64`. Of a mask it is known when all are stored."""
    picture: str = ""
    """Of an image its codec, that of all images of a store; set by `stored_as`."""

    @property
    def codec(self) -> str:
        """How its bytes are decoded."""
        return _CODECS[self.kind] or self.picture

    @property
    def suffix(self) -> str:
        """What stands behind the key in a member's name."""
        return self.name if self.name == self.codec else f"{self.name}.{self.codec}"

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Names and dtypes of its columns: a number's values, the bits of a mask, the size of an image."""
        if self.kind == "number":
            return ((self.name, {"int64": "<i8", "float64": "<f8"}[self.dtype]),)
        if self.kind == "image":
            return ((f"{self.name}_height", "<u4"), (f"{self.name}_width", "<u4"))
        return ((f"{self.name}_bits", "|u1"),) if self.kind in {"mask", "depth"} else ()


def stored_as(extras: Sequence[Extra], codec: str) -> tuple[Extra, ...]:
    """The same fields in a store whose images have this codec."""
    return tuple(replace(extra, picture=codec) if extra.kind == "image" else extra for extra in extras)


def check_fields(extras: Sequence[Extra], codec: str, *, labelled: bool, meta: bool) -> None:
    """See that fields can lie in one store: each name, suffix and column once, and none that a store has anyway.

    Args:
        extras: beside the image and its label.
        codec: of the image.
        labelled: whether there are labels.
        meta: whether `--meta` adds its own field.

    Raises:
        UsageError: naming the field.
    """
    own = ["image", *(["label"] if labelled else []), *(["meta"] if meta else [])]
    suffixes = [codec, *(["cls"] if labelled else []), *(["json"] if meta else [])]
    extras = stored_as(extras, codec)
    columns = [name for extra in extras for name, _ in extra.columns]
    names = Counter([*own, *(extra.name for extra in extras)])
    lines = Counter([*suffixes, *(extra.suffix for extra in extras)])
    for extra in extras:
        reason = ""
        if not _NAME.fullmatch(extra.name) or extra.name in _TAKEN:
            reason = "a name has up to 32 of a-z, 0-9 and _, and is not id or valid"
        elif names[extra.name] > 1 or lines[extra.suffix] > 1:
            reason = "another field has this name, or lies under it"
        for column, _ in extra.columns:
            if not reason and _collides(column, columns, labelled=labelled):
                reason = f"the store has another column {column!r}"
        if reason:
            raise UsageError(f"field {extra.name!r} ({extra.kind}) cannot be stored: {reason}; rename or leave it out")


def _collides(column: str, columns: Sequence[str], *, labelled: bool) -> bool:
    if column == "label" and not labelled:
        return columns.count(column) > 1
    return column in COLUMNS or columns.count(column) > 1
