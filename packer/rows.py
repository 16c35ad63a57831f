"""A finished unit's rows, read back: the index and columns of its samples, in key order."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer_reader.format.columns import COLUMN_MAGIC, StringColumn, parse_frame
from packer_reader.format.index import Index

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["UnitRows", "joined", "read_rows", "shifted"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class UnitRows:
    """Arrays over the samples of one unit."""

    index: Index
    """Offsets relative to the unit's fragment (tar) or to the LMDB value."""
    arrays: Mapping[str, Array]
    columns: Mapping[str, Array]
    """Column name to values; number columns (n,), bytes columns (n, width)."""
    names: StringColumn
    meta: Mapping[str, Any]
    """`problems` of the unit."""


def read_rows(path: Path, suffixes: tuple[str, ...]) -> UnitRows:
    """Read the file that a unit's conversion left.

    Raises:
        FormatError: it is damaged.
        OSError: it cannot be read.
    """
    arrays = parse_frame(path.name, COLUMN_MAGIC, path.read_bytes()).arrays
    index = Index(suffixes, arrays["key"], arrays["offset"], arrays["size"], arrays["crc"], arrays.get("value"))
    columns = {name[4:]: array for name, array in arrays.items() if name.startswith("col.")}
    names = StringColumn(arrays["name.offsets"], arrays["name.bytes"])
    return UnitRows(index, arrays, columns, names, json.loads(np.asarray(arrays["meta"]).tobytes()))


def shifted(index: Index, first: int, stop: int, by: int) -> Index:
    """Some rows of an index, with offsets moved."""
    rows = slice(first, stop)
    offset = (index.offset[:, rows].astype(np.int64) + by).astype("<u8")
    value = None if index.value is None else index.value[rows]
    return Index(index.suffixes, index.key[rows], offset, index.size[:, rows], index.crc[:, rows], value)


def joined(parts: list[Index]) -> Index:
    """Indexes end to end."""
    values = [part.value for part in parts if part.value is not None]
    return Index(
        parts[0].suffixes,
        np.concatenate([part.key for part in parts]),
        np.concatenate([part.offset for part in parts], axis=1),
        np.concatenate([part.size for part in parts], axis=1),
        np.concatenate([part.crc for part in parts], axis=1),
        np.concatenate(values) if values else None,
    )
