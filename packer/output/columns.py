"""Columns over all samples, written as streams from the units' rows: memory does not grow with the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from packer_reader.format.columns import COLUMN_MAGIC, ArraySpec, frame_header, padding

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from packer.rows import UnitRows

__all__ = ["ColumnFiles"]

Array = npt.NDArray[Any]


class _Stream:
    """One column file whose arrays grow side by side; each has its place from the start."""

    def __init__(self, path: Path, meta: Mapping[str, str], arrays: list[ArraySpec]) -> None:
        """Write the header of a frame with these arrays."""
        self._file: BinaryIO = path.open("wb")
        place = self._file.write(frame_header(COLUMN_MAGIC, meta, arrays))
        self._places = []
        for spec in arrays:
            place += padding(place)
            self._places.append(place)
            place += spec.nbytes
        self._file.truncate(place)

    def append(self, number: int, data: Array) -> None:
        """Add to one of the arrays."""
        self._file.seek(self._places[number])
        self._places[number] += self._file.write(np.ascontiguousarray(data).tobytes())

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


class ColumnFiles:
    """The `columns/` folder of a store: one file per number column, and `name`."""

    def __init__(self, folder: Path, first: UnitRows, samples: int, name_bytes: int) -> None:
        """Begin all files.

        Args:
            folder: of the store.
            first: any unit's rows, for names, dtypes and widths.
            samples: of the store.
            name_bytes: of all source names.
        """
        (folder / "columns").mkdir(exist_ok=True)
        self.kinds: dict[str, str] = {}
        self._streams: dict[str, _Stream] = {}
        for name, values in first.columns.items():
            self.kinds[name] = "number" if values.ndim == 1 else "bytes"
            spec = ArraySpec("values", values.dtype.str, (samples, *values.shape[1:]))
            self._streams[name] = _Stream(
                folder / "columns" / f"{name}.col", {"column": name, "kind": self.kinds[name]}, [spec]
            )
        self.kinds["name"] = "string"
        specs = [ArraySpec("offsets", "<u8", (samples + 1,)), ArraySpec("bytes", "|u1", (name_bytes,))]
        self._names = _Stream(folder / "columns" / "name.col", {"column": "name", "kind": "string"}, specs)
        self._names.append(0, np.zeros(1, "<u8"))
        self._name_end = 0

    def add(self, rows: UnitRows) -> None:
        """Take the next unit's samples."""
        for name, values in rows.columns.items():
            self._streams[name].append(0, values)
        offsets, data = rows.arrays["name.offsets"], rows.arrays["name.bytes"]
        self._names.append(0, offsets[1:] + np.uint64(self._name_end))
        self._names.append(1, data)
        self._name_end += len(data)

    def close(self) -> None:
        """Finish all files."""
        for stream in [*self._streams.values(), self._names]:
            stream.close()
