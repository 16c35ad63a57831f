"""Which source a path is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from packer.sources.imagefolder import ImageFolder
from packer_reader.errors import SourceError, UsageError
from packer_reader.format.names import MANIFEST

if TYPE_CHECKING:
    from packer.sources.base import Source

__all__ = ["TYPES", "detect"]

TYPES = ("imagefolder",)


def detect(path: str, forced: str | None = None) -> Source:
    """The source at a path.

    Args:
        path: what the user named.
        forced: a type out of `TYPES`, instead of a guess.

    Raises:
        SourceError: nothing is there, or it is nothing that can be converted.
        UsageError: there is no such type.
    """
    if forced is not None and forced not in TYPES:
        raise UsageError(f"--from is {forced!r}, it must be one of {', '.join(TYPES)}")
    place = Path(path)
    if not place.exists():
        raise SourceError(f"source {path!r} does not exist: check the path")
    if not place.is_dir():
        raise SourceError(f"source {path!r} is a file: give the folder that holds the images")
    if (place / MANIFEST).is_file():
        raise SourceError(f"source {path!r} is a packer store already: give the raw images it was made from")
    return ImageFolder(str(place))
