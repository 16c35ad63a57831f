"""Which source paths are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from packer.sources import PYTHON
from packer.sources.imagefolder import ImageFolder
from packer.sources.tree import ARCHIVES, COMPRESSED, COMPRESSED_REASON
from packer_reader.errors import SourceError, UsageError
from packer_reader.format.names import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer.sources.base import Source

__all__ = ["TYPES", "detect"]

TYPES = ("imagefolder",)


def detect(paths: Sequence[str], forced: str | None = None, known: tuple[str, ...] = ()) -> Source:
    """The source at one or several paths.

    Args:
        paths: what the user named.
        forced: a type out of `TYPES`, instead of a guess; or `python:MODULE:ATTRIBUTE`, without paths.
        known: classes that keep their index.

    Raises:
        SourceError: nothing is there, or it is nothing that can be converted.
        UsageError: there is no such type.
    """
    if forced is not None and forced.startswith(PYTHON):
        return _python(forced, paths, known)
    if forced is not None and forced not in TYPES:
        raise UsageError(f"--from is {forced!r}, it must be one of {', '.join(TYPES)} or python:MODULE:ATTRIBUTE")
    if not paths:
        raise UsageError("no source is given: name the folder that holds the images, then the output")
    paths = [path.rstrip("/") or path for path in paths]
    for path in paths:
        _check_place(path)
    places = [Path(path).resolve() for path in paths]
    for number, place in enumerate(places):
        for other in places[:number]:
            if place == other or place in other.parents or other in place.parents:
                raise UsageError(f"sources {str(other)!r} and {str(place)!r} overlap: name each image once")
    return ImageFolder(tuple(paths), known)


def _python(forced: str, paths: Sequence[str], known: tuple[str, ...]) -> Source:
    if paths:
        raise UsageError(f"--from {forced} names the data set, so there can be no path {paths[0]!r} besides the output")
    from packer.sources.dataset import load_dataset  # noqa: PLC0415 - only data sets of Python need it

    return load_dataset(forced.removeprefix(PYTHON), known)


def _check_place(path: str) -> None:
    """Refuse a path that holds nothing to convert."""
    place = Path(path)
    if not place.exists():
        raise SourceError(f"source {path!r} does not exist: check the path")
    if not place.is_dir() and place.name.lower().endswith(tuple(end.decode() for end in COMPRESSED)):
        raise SourceError(f"source {path!r}: {COMPRESSED_REASON}")
    if not place.is_dir() and place.suffix.lower().encode() not in ARCHIVES:
        raise SourceError(
            f"source {path!r} is a file: give the folder that holds the images, or a .tar or .zip archive of it"
        )
    if (place / MANIFEST).is_file():
        raise SourceError(f"source {path!r} is a packer store already: give the raw images it was made from")
