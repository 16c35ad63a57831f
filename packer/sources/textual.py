"""Whether paths hold text, rather than lists of images."""

from __future__ import annotations

import os
import re
from contextlib import closing
from pathlib import Path

from packer.sources.columns import IMAGES
from packer.sources.lists import encoded_columns, read_rows
from packer.sources.text import text_suffix
from packer.sources.tree import is_junk
from packer_reader.errors import PackerError

__all__ = ["holds_text"]

_TABLES = 4
"""Tables and lists of a folder whose columns say what all are."""
_ABOUT = re.compile(r"(read[ _-]?me|licen[cs]e|copying|notice|citation|authors|changelog)\b", re.IGNORECASE)
"""Files about a data set lie beside any."""


def holds_text(path: str, field: str) -> bool:
    """Whether a file, or every file of a folder, is one of documents.

    Args:
        path: of a source.
        field: key or column of the text, which tells such rows from rows that name images.
    """
    place = Path(path)
    if place.is_file():
        return _is_text(place, field)
    found, tables, folders = False, list[Path](), [os.fsencode(path)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                name = os.fsdecode(entry.name)
                if is_junk(entry.name) or name.lower().endswith(".md") or _ABOUT.match(name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                    continue
                if not text_suffix(name):
                    return False  # mostly the first one: a folder of a million images is not looked through
                found = True
                if not name.lower().endswith(".txt") and len(tables) < _TABLES:
                    tables.append(Path(os.fsdecode(entry.path)))
    return found and all(_is_text(table, field) for table in tables)


def _is_text(path: Path, field: str) -> bool:
    suffix = text_suffix(path.name)
    if suffix == ".txt" or (suffix and path.suffix.lower() in {".gz", ".zst"}):
        return True
    if not suffix:
        return False
    try:
        named, _, rows = read_rows(path, light=True)
        with closing(rows):
            first = next(rows, None)
    except PackerError:
        return False  # whoever reads it says what is wrong
    columns = named or (list(first.cells) if first is not None else [])
    images = {column.lower() for column in columns} & set(IMAGES)
    files = any(column.lower().endswith("file_name") for column in columns) or encoded_columns(path)
    return field in columns and not images and not files
