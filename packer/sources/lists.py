"""Rows of lists: CSV, TSV, JSON lines and Parquet, one after the other, with where each stands.

Cells of CSV are strings; what a whole column is, `Column.kind` says. Nothing is guessed cell by cell.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from packer.sources.columns import LABELS
from packer_reader.errors import MissingError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

__all__ = ["LISTS", "Column", "Row", "encoded_columns", "read_rows"]

LISTS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
"""Extensions of lists."""
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_REAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+([eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)")
"""Whole numbers of more than 18 digits are neither: as real ones they would lose some."""
_EXACT = 1 << 53
"""Whole numbers up to here are floats without loss."""
_BATCH = 1024
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a list."""

    place: str
    """`line 4` or `row 4`."""
    cells: dict[str, Any]
    """By column; missing ones are left out."""
    problem: str = ""
    """Why it is no row."""


@dataclass
class Column:
    """What all cells of a column have in common."""

    text: bool
    """Whether cells are strings that may mean numbers."""
    encoded: bool = False
    """Whether cells are files, as bytes; such a column is not looked at before it is stored."""
    whole: bool = True
    real: bool = True
    strings: bool = True
    seen: int = 0
    classes: bool = False
    """Whether its values are wanted: those of a label are classes."""
    values: set[str] = field(default_factory=set)

    def add(self, name: str, value: Any) -> None:
        """Take one cell of the column of this name."""
        self.seen += 1
        if isinstance(value, str):
            self.whole &= self.text and _WHOLE.fullmatch(value) is not None
            exact = _WHOLE.fullmatch(value) is not None and abs(int(value)) <= _EXACT
            self.real &= self.text and (exact or _REAL.fullmatch(value) is not None)
        else:
            self.strings = False
            number = isinstance(value, int | float) and not isinstance(value, bool)
            self.whole &= number and isinstance(value, int) and -(1 << 63) <= value < 1 << 63
            self.real &= number and (isinstance(value, float) or abs(value) <= _EXACT)
        if self.classes or name.lower() in LABELS:
            self.values.add(str(value))

    @property
    def kind(self) -> str:
        """`int`, `float`, `str`, `json` or `bytes`: one for the whole column."""
        if self.encoded:
            return "bytes"
        if not self.seen:
            return "str"
        return "int" if self.whole else "float" if self.real else "str" if self.strings else "json"


def encoded_columns(path: Path) -> set[str]:
    """Columns of a Parquet file that hold files: bytes, or Hugging Face's pairs of `bytes` and `path`."""
    if path.suffix.lower() != ".parquet":
        return set()
    import pyarrow as pa  # noqa: PLC0415 - only Parquet needs it
    from pyarrow import parquet  # noqa: PLC0415

    def is_bytes(kind: Any) -> bool:
        if pa.types.is_struct(kind):
            return any(child.name == "bytes" and is_bytes(child.type) for child in kind)
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    return {column.name for column in parquet.ParquetFile(path).schema_arrow if is_bytes(column.type)}


def read_rows(path: Path, *, light: bool = False, only: str | None = None) -> tuple[list[str], bool, Generator[Row]]:
    """The rows of a list.

    Args:
        path: of the list.
        light: leave out columns of Parquet that hold files.
        only: of Parquet, read this column alone.

    Returns:
        Column names (empty for JSON lines, where each row has its own), whether cells are strings, and the rows.

    Raises:
        SourceError: it has no header, or cannot be read.
        MissingError: it is Parquet, and there is no pyarrow.
    """
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            return _parquet(path, light=light, only=only)
        if suffix in {".csv", ".tsv"}:
            return _csv(path, "\t" if suffix == ".tsv" else "")
        return [], False, _json_lines(path)
    except OSError as error:
        raise SourceError(f"cannot read {str(path)!r}: {error.strerror}; check the path and its permissions") from None


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(4)
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    return "utf-8-sig"


def _csv(path: Path, separator: str) -> tuple[list[str], bool, Generator[Row]]:
    encoding = _encoding(path)
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding=encoding, errors="surrogateescape", newline="") as file:
        head = _checked(path, file.readline)
        separator = separator or max(",;\t|", key=lambda one: (_outside_quotes(head).count(one), one == ","))
        file.seek(0)
        columns = _checked(path, lambda: next(csv.reader(file, delimiter=separator), []))
    if not columns or len(set(columns)) < len(columns):
        raise SourceError(f"{str(path)!r}: the first line must name the columns, each once; it is {head[:80]!r}")
    columns = [name or f"column_{number}" for number, name in enumerate(columns)]

    def rows() -> Generator[Row]:
        with path.open(encoding=encoding, errors="surrogateescape", newline="") as file:
            # Strict: a quote that is never closed would make one cell of all rows behind it.
            reader = csv.reader(file, delimiter=separator, strict=True)
            next(reader)
            while True:
                place = f"line {reader.line_num + 1}"
                try:
                    cells = _checked(path, lambda: next(reader), f" at {place}")
                except StopIteration:
                    return
                if len(cells) > len(columns):
                    yield Row(place, {}, f"it has {len(cells)} cells, the header {len(columns)}")
                elif cells:
                    yield Row(place, {name: cell for name, cell in zip(columns, cells, strict=False) if cell})

    return columns, True, rows()


def _checked(path: Path, read: Callable[[], T], where: str = "") -> T:
    """What is read; rows behind a mistake in quotes or bytes cannot be told apart, so that none of them are taken.

    Raises:
        SourceError: naming the place.
    """
    try:
        return read()
    except csv.Error as error:
        raise SourceError(
            f"{str(path)!r}{where} is not CSV ({error}): a cell with quotes is quoted, and quotes in it are doubled"
        ) from None
    except UnicodeError:
        raise SourceError(f"{str(path)!r}{where} is not the UTF-16 that it begins as: save it as UTF-8") from None


def _outside_quotes(line: str) -> str:
    return re.sub(r'"[^"]*"', "", line)


def _json_lines(path: Path) -> Generator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(b"\xef\xbb\xbf").strip()
            if not text:
                continue
            try:
                found = json.loads(text)
            except (ValueError, RecursionError):
                yield Row(f"line {number}", {}, "it is not JSON")
                continue
            if isinstance(found, dict):
                yield Row(f"line {number}", {name: value for name, value in found.items() if value is not None})
            else:
                yield Row(f"line {number}", {}, "it is no JSON object")


def _cells(batch: Any, number: int) -> Iterator[Row]:
    """Rows of a batch; one whose values Python cannot hold (no UTF-8, a date beyond its years) is none."""
    try:
        found = batch.to_pylist()
    except (ValueError, OverflowError):
        for place in range(batch.num_rows):
            try:
                (cells,) = batch.slice(place, 1).to_pylist()
            except (ValueError, OverflowError):
                yield Row(f"row {number + place}", {}, "a value in it is no valid Unicode, or beyond what Python holds")
            else:
                yield _row(number + place, cells)
        return
    for place, cells in enumerate(found):
        yield _row(number + place, cells)


def _row(number: int, cells: dict[str, Any]) -> Row:
    return Row(f"row {number}", {name: value for name, value in cells.items() if value is not None})


def _parquet(path: Path, *, light: bool, only: str | None) -> tuple[list[str], bool, Generator[Row]]:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - only Parquet needs it
    except ImportError:
        raise MissingError(f"{str(path)!r} is Parquet: pip install 'packer-data[table]' (pyarrow)") from None
    try:
        file = parquet.ParquetFile(path)
    except ArrowException as error:
        raise SourceError(f"{str(path)!r} is no Parquet file ({str(error).splitlines()[0]}): copy it again") from None

    names = list(file.schema_arrow.names)
    if len(set(names)) < len(names):
        raise SourceError(f"{str(path)!r} has two columns of one name: rename one of them")

    def rows() -> Generator[Row]:
        number = 0
        heavy = encoded_columns(path) if light else set()
        wanted = [name for name in names if name not in heavy and only in {None, name}]
        try:
            for batch in file.iter_batches(_BATCH, columns=wanted):
                for row in _cells(batch, number):
                    yield row
                    number += 1
        except (ArrowException, OSError):
            raise SourceError(f"{str(path)!r} is damaged behind row {number}: copy it again") from None

    return names, False, rows()
