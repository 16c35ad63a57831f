"""Whether paths hold text, rather than lists of images."""

from __future__ import annotations

import os
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.sources.columns import IMAGE_COLUMNS
from packer.sources.lists import encoded_columns, read_rows
from packer.sources.textfiles import is_about, text_suffix
from packer.sources.tree import is_folder, is_junk
from packer.sources.walk import EXTENSIONS
from packer.text import Text
from packer_reader.errors import PackerError, SourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["asks_for_text", "holds_text"]

_TABLES = 4
"""Tables and lists of a folder whose columns say what all are."""
_ROWS = 100
"""Rows of one that are looked at."""


def asks_for_text(
    paths: Sequence[str], text: Text | None, forced: str | None, fields: tuple[str, ...], stores: Sequence[str]
) -> bool:
    """Whether sources are documents: the user says so, or all of them are such files.

    Args:
        paths: of the sources.
        text: what was said about documents.
        forced: the type that was named.
        fields: columns of a list that were named.
        stores: those of the paths that are stores.

    Raises:
        SourceError: there is a store, or text beside something else.
        UsageError: an option is not for text.
    """
    if forced == "text" or (text is not None and forced is None):
        if fields:
            raise UsageError("--field names columns of a list of images: --text-field names that of the text")
        if stores:
            raise SourceError(f"{stores[0]!r} is a store already: build from its documents, or read it (seq_len=)")
        return True
    if forced is not None or fields or stores:
        return False
    which = [holds_text(path, Text.field) for path in paths]
    if any(which) and not all(which):
        raise SourceError(
            f"{paths[which.index(True)]!r} is text, and {paths[which.index(False)]!r} is not: build apart"
        )
    return all(which)


def holds_text(path: str, field: str) -> bool:
    """Whether a file, or every file of a folder, is one of documents.

    Args:
        path: of a source.
        field: key or column of the text, which tells such rows from rows that name images.
    """
    place = Path(path)
    if place.is_file():
        return _is_text(place, field)
    found, tables, folders, seen = False, list[Path](), [os.fsencode(path)], set[tuple[int, int]]()
    while folders:
        folder = folders.pop()
        try:
            here = os.stat(folder)  # noqa: PTH116 - names may be no valid text
            if (here.st_dev, here.st_ino) in seen:
                continue  # a link in a circle
            seen.add((here.st_dev, here.st_ino))
            entries = [entry for entry in os.scandir(folder) if not _is_beside(entry.name)]
        except OSError:
            continue  # whoever lists it says so
        for entry in entries:
            name = os.fsdecode(entry.name)
            if is_folder(entry):
                folders.append(entry.path)
                continue
            if not text_suffix(name):
                return False
            found = True
            if not name.lower().endswith(".txt") and len(tables) < _TABLES:
                tables.append(Path(os.fsdecode(entry.path)))
    return found and all(_is_text(table, field) for table in tables)


def _is_beside(name: bytes) -> bool:
    shown = os.fsdecode(name)
    return is_junk(name) or shown.lower().endswith(".md") or is_about(shown)


def _is_text(path: Path, field: str) -> bool:
    suffix = text_suffix(path.name)
    if suffix == ".txt" or (suffix and path.suffix.lower() in {".gz", ".zst"}):
        return True
    if not suffix:
        return False
    try:
        named, _, rows = read_rows(path, light=True)
        with closing(rows):
            first = [row.cells for row in islice(rows, _ROWS)]
        encoded = encoded_columns(path)
    except PackerError:
        return False  # whoever reads it says what is wrong
    columns = {*named, *(column for cells in first for column in cells)}
    files = any(column.lower() in IMAGE_COLUMNS or column.lower().endswith("file_name") for column in columns)
    pictured = any(_is_picture(value) for cells in first for column, value in cells.items() if column != field)
    return field in columns and not (files or pictured or encoded)


def _is_picture(value: Any) -> bool:
    """Whether a cell names an image file."""
    return isinstance(value, str) and os.path.splitext(value)[1].lower() in EXTENSIONS  # noqa: PTH122
