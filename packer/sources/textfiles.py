"""Files of documents: which ones a source has, what they are by their names, and which splits they make."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packer.sample import Problem
from packer.sources.imagefolder import SPLIT_NAMES
from packer.sources.tree import Folder, suffix_of
from packer.sources.unpack import PACKED
from packer_reader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["LINES", "TABLES", "TEXTS", "Found", "TextFile", "is_about", "path_of", "text_files", "text_suffix"]

LINES = (".jsonl", ".ndjson")
"""Extensions of lines of JSON."""
TABLES = (".csv", ".tsv", ".parquet")
"""Extensions of tables, which cannot be read at a place of one's choice."""
TEXTS = (".txt", *LINES, *TABLES)
"""Extensions of documents, behind which .gz or .zst may stand for all but tables."""
_ABOUT = re.compile(r"(read[ _-]?me|licen[cs]e|copying|notice|citation|changelog)(\.[a-z0-9.]+)?", re.IGNORECASE)


def text_suffix(name: str) -> str:
    """The extension of documents that a file's name has, without a compression behind it; empty without one."""
    stem, last = os.path.splitext(name.lower())  # noqa: PTH122 - names may be no valid text
    inner = os.path.splitext(stem)[1] if last in PACKED else last  # noqa: PTH122
    return inner if inner in TEXTS and not (last in PACKED and inner in TABLES) else ""


def is_about(name: str) -> bool:
    """Whether a file tells about a data set, and is none of its documents: README, LICENSE and the like."""
    return _ABOUT.fullmatch(name) is not None


@dataclass(frozen=True)
class TextFile:
    """A file of documents."""

    source: int
    name: str
    """Relative to its root."""
    size: int
    mtime_ns: int
    split: str = ""


@dataclass
class Found:
    """The files of a source, and what was seen beside them."""

    files: list[TextFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    about: list[str] = field(default_factory=list)
    """Names of files that tell about the data."""
    notices: list[str] = field(default_factory=list)


def text_files(roots: Sequence[str]) -> Found:
    """All files of all roots, sorted; of folders those whose extensions are those of documents.

    Raises:
        SourceError: a root is neither a file nor a folder.
    """
    found = Found()
    for number, root in enumerate(roots):
        found.files += _files_of(root, number, found)
    found.files = _with_splits(found.files)
    like = sorted({file.name for file in found.files if not file.split and _top(file) in SPLIT_NAMES})
    if like and len(found.files) > 1:
        named = ", ".join(map(repr, like[:3]))
        found.notices.append(f"named like splits, but not all files are: {named} go into one set with the others")
    if found.about:
        shown = ", ".join(map(repr, found.about[:3])) + (f" and {len(found.about) - 3} more" * (len(found.about) > 3))
        found.notices.append(f"left out as being about the data: {shown}: name one to take it as a document")
    tops = {file.name.split("/")[0] for file in found.files if "/" in file.name}
    if len(tops) > 1 and all("/" in file.name and not file.split for file in found.files):
        shown = ", ".join(sorted(tops)[:5])
        found.notices.append(f"folders are no labels of text, only its names say {shown}: documents are stored without")
    return found


def _files_of(root: str, number: int, found: Found) -> Iterator[TextFile]:
    if not Path(root).is_dir():
        if not Path(root).is_file():
            raise SourceError(f"source {root!r} is neither a file nor a folder: check the path")
        here = Path(root).stat()
        yield TextFile(number, os.path.basename(root), here.st_size, here.st_mtime_ns)  # noqa: PTH119
        return
    stack = [(b"", Folder(os.fsencode(root)))]
    while stack:
        above, folder = stack.pop()
        level = folder.level(_wanted)
        found.notices += [f"{os.fsdecode(above)!r} {notice}" for notice in level.notices]
        refused = [*level.refused, *((name, "unsupported", "unpack the archive first") for name, _ in level.archives)]
        found.problems += [Problem(os.fsdecode(above + name), failure, reason) for name, failure, reason in refused]
        for suffix, count in level.ignored.items():
            found.ignored[os.fsdecode(suffix)] += count
        for name, size, mtime_ns in zip(level.files.names, level.files.sizes, level.files.mtimes, strict=True):
            path = os.fsdecode(above + name)
            if is_about(os.fsdecode(name)):
                found.about.append(path)
            elif text_suffix(path):
                yield TextFile(number, path, size, mtime_ns)
            else:
                found.ignored[os.fsdecode(suffix_of(name))] += 1
        below = [(above + name + b"/", place) for name, place in level.folders if isinstance(place, Folder)]
        stack += reversed(below)


def _wanted(suffix: bytes) -> bool:
    return os.fsdecode(suffix) in (*TEXTS, *PACKED)


def _with_splits(files: list[TextFile]) -> list[TextFile]:
    """The files with their splits, where first folders or names say one for each: `train/x.txt`, `val.jsonl`."""
    tops = list(map(_top, files))
    if not files or not all(top in SPLIT_NAMES for top in tops) or len({SPLIT_NAMES[top] for top in tops}) < 2:
        return files
    return [replace(file, split=SPLIT_NAMES[top]) for file, top in zip(files, tops, strict=True)]


def _top(file: TextFile) -> str:
    """What may name a split: the first folder, or the first part of a name."""
    return re.split(r"[/._-]", file.name.lower(), maxsplit=1)[0]


def path_of(root: str, name: str) -> bytes:
    """Of a file of a source, which may be that file itself."""
    return os.fsencode(f"{root}/{name}") if Path(root).is_dir() else os.fsencode(root)
