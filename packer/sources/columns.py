"""Which column of a list becomes which field: as `--field` says, or by the columns' names. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from packer.fields import COLUMNS, EXTRA_KINDS, PICTURES, Extra
from packer.sources.suffixes import picture_kind
from packer_reader.errors import SampleError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from packer.fields import ExtraKind
    from packer.sources.lists import Column, Row

__all__ = ["IMAGE_COLUMNS", "LABELS", "Chosen", "choose"]

IMAGE_COLUMNS = ("file_name", "path", "image", "image_path", "filename", "filepath", "img")
"""Columns that are taken for the image's path."""
LABELS = ("label", "class", "category", "target")
"""Columns that are taken for the label."""
_KINDS = ("image", "label", *(kind for kind in EXTRA_KINDS if kind != "image"))
_NAME = re.compile(r"[a-z0-9_]{1,32}")
_RESERVED = COLUMNS | {"image", "meta", "id", "valid"}
"""Names of other fields, of a batch's own values, and of columns that every store has."""


@dataclass(frozen=True)
class Chosen:
    """The fields of a list."""

    image: str
    """Column of the image's path."""
    label: str | None
    """Column of the label; None without one."""
    classes: tuple[str, ...] | None
    """Class names by index, where labels are text."""
    extras: tuple[tuple[Extra, str], ...]
    """Other fields, each with its column."""
    encoded: bool = False
    """Whether the image's column holds the images themselves."""
    left: tuple[str, ...] = ()
    """Columns of bytes that are not stored."""

    @property
    def words(self) -> str:
        """For people."""
        parts = [f"image from {self.image!r}"] + ([f"label from {self.label!r}"] if self.label else [])
        return ", ".join(parts + [f"{extra.name} ({extra.kind}) from {column!r}" for extra, column in self.extras])

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.classes or ())}

    def number_of(self, row: Row) -> int:
        """A row's label as a number; -1 where the list has no labels.

        Raises:
            SampleError: the row has none.
        """
        if self.label is None:
            return -1
        value = row.cells.get(self.label)
        if value is None:
            raise SampleError("no-label", f"{row.place} has no {self.label!r}")
        if self.classes is not None:
            return self._numbers[str(value)]
        number = int(value)
        if not -(1 << 31) <= number < 1 << 31:
            raise SampleError("unsupported", f"{row.place}: the label is {number}, labels have 32 bits")
        return number


def choose(columns: Mapping[str, Column], asked: Sequence[str], known: tuple[str, ...], where: str) -> Chosen:
    """Fields from columns.

    Args:
        columns: by name, as the whole list has them.
        asked: `NAME=KIND:COLUMN`; other columns become what their names say.
        known: classes that keep their index; others come behind them, sorted.
        where: the list's name, for messages.

    Raises:
        UsageError: a column is missing, or has no such kind.
    """
    wanted = [_parse(text) for text in asked]
    for name, kind, column in wanted:
        if column not in columns:
            raise UsageError(
                f"--field {name}={kind}:{column}: {where} has no column {column!r}, it has {', '.join(columns)}"
            )
    named = {column for _, _, column in wanted}
    images = [column for name, _, column in wanted if name == "image"] or sorted(
        (column for column in columns if column.lower() in IMAGE_COLUMNS and column not in named),
        key=lambda column: IMAGE_COLUMNS.index(column.lower()),
    )
    images = images or [column for column in columns if columns[column].kind == "bytes"]
    if not images:
        raise UsageError(
            f"no column of {where} is known to name the image files ({', '.join(columns)}): say which, such as "
            f"--field image=image:{next(iter(columns), 'path')} (documents: --from text --text-field NAME)"
        )
    rest = [(name, kind, column) for name, kind, column in wanted if name != "image" and kind != "label"]
    labels = [column for _, kind, column in wanted if kind == "label"] or [
        column for column in columns if column.lower() in LABELS and column not in named
    ]
    others = [c for c in columns if c not in {images[0], *labels[:1], *named} and columns[c].kind != "bytes"]
    rest += [_named(c, columns[c]) for c in others]
    if sum(kind == "label" for _, kind, _ in wanted) > 1 or sum(name == "image" for name, _, _ in wanted) > 1:
        raise UsageError("--field gives two columns for the image, or for the label: choose one")
    label, classes = labels[0] if labels else None, None
    if label is not None and columns[label].kind == "float":
        rest, label = [("label", "number", label), *rest], None
    elif label is not None and columns[label].kind != "int":
        classes = (*known, *sorted(columns[label].values - set(known)))
    extras = tuple((_extra(name, kind, column, columns[column], where), column) for name, kind, column in rest)
    _check_names(extras)
    if known and classes is None:
        raise UsageError(f"--classes gives names an index, and {where} has no labels of text: leave it out")
    encoded = [column for column, found in columns.items() if found.kind == "bytes"]
    taken = {images[0], *(column for _, column in extras)}
    left = tuple(column for column in encoded if column not in taken)
    return Chosen(images[0], label, classes, extras, images[0] in encoded, left)


def _parse(text: str) -> tuple[str, str, str]:
    name, equals, rest = text.partition("=")
    kind, colon, column = rest.partition(":")
    if not equals or not colon or not column or kind not in _KINDS:
        raise UsageError(f"--field is {text!r}, it must be NAME=KIND:COLUMN, KIND being one of {', '.join(_KINDS)}")
    if (kind == "label" and name != kind) or (name == "image" and kind != name):
        raise UsageError(f"--field is {text!r}: the label is called label, and the (first) image image")
    return name, kind, column


def _named(column: str, found: Column) -> tuple[str, str, str]:
    """A field from a column that nobody has asked for."""
    lower = column.lower()
    name = re.sub("[^a-z0-9_]+", "_", lower.removesuffix("_file_name"))[:32]
    if lower.endswith("_file_name"):
        return name, picture_kind(name), column
    return name, {"int": "number", "float": "number", "str": "text"}.get(found.kind, "json"), column


def _extra(name: str, kind: str, column: str, found: Column, where: str) -> Extra:
    if found.kind == "bytes" and kind not in PICTURES:
        raise UsageError(f"--field {name}={kind}:{column}: column {column!r} of {where} holds files, which are images")
    if kind == "number" and found.kind not in {"int", "float"}:
        raise UsageError(f"--field {name}=number:{column}: column {column!r} of {where} does not hold numbers alone")
    chosen: ExtraKind = kind  # type: ignore[assignment]
    return Extra(name, chosen, {"int": "int64", "float": "float64"}[found.kind] if kind == "number" else "")


def _check_names(extras: Iterable[tuple[Extra, str]]) -> None:
    seen: dict[str, str] = {}
    for extra, column in extras:
        if not _NAME.fullmatch(extra.name) or (
            extra.name in _RESERVED and (extra.name, extra.kind) != ("label", "number")
        ):
            raise UsageError(f"column {column!r} would be field {extra.name!r}, which cannot be: name it by --field")
        if extra.name in seen:
            raise UsageError(
                f"columns {seen[extra.name]!r} and {column!r} would both be field {extra.name!r}: use --field"
            )
        seen[extra.name] = column
