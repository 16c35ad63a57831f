"""Classes that a new version of a data set takes over from an earlier one."""

from __future__ import annotations

from pathlib import Path

from packer_reader.errors import UsageError
from packer_reader.format.names import CLASSES, MANIFEST
from packer_reader.stores.open import read_manifest, store_folders

__all__ = ["known_classes"]


def known_classes(path: str) -> tuple[str, ...]:
    """Class names by index, of a store or of a file with a name a line.

    Raises:
        UsageError: there are none, or one comes twice.
        StoreError: it is a folder, but no store.
    """
    place = Path(path)
    if place.name == CLASSES and (place.parent / MANIFEST).is_file():
        place = place.parent  # the list is for people, with odd names escaped; the manifest has them exactly
    if place.is_dir():
        names = read_manifest(store_folders(place)[0]).classes or ()
    else:
        try:
            text = place.read_text(encoding="utf-8-sig", errors="surrogateescape")
        except OSError as error:
            raise UsageError(
                f"--classes {path!r} cannot be read ({error.strerror}): give a store or a text file"
            ) from None
        names = tuple(line for line in text.splitlines() if line.strip())
    if not names:
        raise UsageError(f"--classes {path!r} has no classes: give a store with labels, or a file with a class a line")
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise UsageError(f"--classes {path!r} names {twice!r} twice: each class has one index")
    return names
