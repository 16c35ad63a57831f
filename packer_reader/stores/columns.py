"""A store's columns, mapped when they are used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from packer_reader.errors import FormatError, NotFoundError
from packer_reader.format.columns import COLUMN_MAGIC, Frame, StringColumn, parse_frame
from packer_reader.format.names import column_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packer_reader.stores.base import Store

__all__ = ["Columns"]

Array = npt.NDArray[Any]


class Columns(Mapping[str, Array | StringColumn]):
    """The store's columns by name, mapped when first used."""

    def __init__(self, store: Store) -> None:
        """Take the store whose columns they are."""
        self._store, self._manifest = store, store.manifest
        self._held: dict[str, Array | StringColumn] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._manifest.columns)

    def __len__(self) -> int:
        return len(self._manifest.columns)

    def __contains__(self, name: object) -> bool:
        return name in self._manifest.columns

    def __getitem__(self, name: str) -> Array | StringColumn:
        if name not in self._held:
            self._held[name] = self._load(name)
        return self._held[name]

    def numbers(self, name: str) -> Array:
        """A number column, (n,).

        Raises:
            NotFoundError: there is no such number column.
        """
        column = self[name]
        if isinstance(column, StringColumn):
            raise NotFoundError(f"column {name!r} holds strings, not numbers")
        return column

    def strings(self, name: str) -> StringColumn:
        """A string column.

        Raises:
            NotFoundError: there is no such string column.
        """
        column = self[name]
        if not isinstance(column, StringColumn):
            raise NotFoundError(f"column {name!r} holds numbers, not strings")
        return column

    def _load(self, name: str) -> Array | StringColumn:
        if name not in self._manifest.columns:
            raise NotFoundError(f"there is no column {name!r}: the store has {', '.join(self._manifest.columns)}")
        file, samples = column_file(name), self._manifest.samples
        listed = self._manifest.files.get(file)
        if listed is None:
            raise FormatError("manifest.json", [f"files does not list {file}"])
        frame = parse_frame(file, COLUMN_MAGIC, self._store.map(file, listed["bytes"]))
        if self._manifest.columns[name] == "string":
            return _string_column(file, frame, samples)
        values = frame.arrays.get("values")
        if values is None or len(values) != samples:
            raise FormatError(file, [f"should hold {samples} values"])
        return values


def _string_column(file: str, frame: Frame, samples: int) -> StringColumn:
    offsets, data = frame.arrays.get("offsets"), frame.arrays.get("bytes")
    if offsets is None or data is None or offsets.shape != (samples + 1,) or offsets.dtype.str != "<u8":
        raise FormatError(file, [f"should hold offsets and bytes of {samples} strings"])
    if offsets[-1] != len(data):
        raise FormatError(file, [f"offsets end at {offsets[-1]}, bytes at {len(data)}"])
    return StringColumn(offsets, data)
