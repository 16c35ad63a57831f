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

__all__ = ["UnitRows", "read_rows"]

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
    """`problems`, `reencoded` and `histogram` of the unit."""


def read_rows(path: Path, suffixes: tuple[str, ...]) -> UnitRows:
    """Read the file that `convert_unit` left.

    Raises:
        FormatError: it is damaged.
        OSError: it cannot be read.
    """
    arrays = parse_frame(path.name, COLUMN_MAGIC, path.read_bytes()).arrays
    index = Index(suffixes, arrays["key"], arrays["offset"], arrays["size"], arrays["crc"], arrays.get("value"))
    columns = {name[4:]: array for name, array in arrays.items() if name.startswith("col.")}
    names = StringColumn(arrays["name.offsets"], arrays["name.bytes"])
    return UnitRows(index, arrays, columns, names, json.loads(np.asarray(arrays["meta"]).tobytes()))
