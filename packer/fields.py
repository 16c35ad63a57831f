"""Fields beside the image and its label: their kind alone decides codec, stored type and how geometry treats them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from packer_reader.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COLUMNS", "EXTRA_KINDS", "Extra", "ExtraKind", "check_fields"]

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
    columns = [extra.column[0] for extra in extras if extra.column is not None]
    names = Counter([*own, *(extra.name for extra in extras)])
    lines = Counter([*suffixes, *(extra.suffix for extra in extras)])
    for extra in extras:
        reason = ""
        if not _NAME.fullmatch(extra.name) or extra.name in _TAKEN:
            reason = "a name has up to 32 of a-z, 0-9 and _, and is not id or valid"
        elif names[extra.name] > 1 or lines[extra.suffix] > 1:
            reason = "another field has this name, or lies under it"
        elif extra.column is not None and _collides(extra.column[0], columns, labelled=labelled):
            reason = f"the store has another column {extra.column[0]!r}"
        if reason:
            raise UsageError(f"field {extra.name!r} ({extra.kind}) cannot be stored: {reason}; rename or leave it out")


def _collides(column: str, columns: Sequence[str], *, labelled: bool) -> bool:
    if column == "label" and not labelled:
        return columns.count(column) > 1
    return column in COLUMNS or columns.count(column) > 1
