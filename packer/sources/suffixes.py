"""What the ending of a file's name says of a field, where files of one stem are one sample. Pure."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from packer.fields import Extra
from packer.sources.walk import EXTENSIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packer.fields import ExtraKind

__all__ = ["IMAGE_SUFFIXES", "field_of", "fields_of", "picture_kind"]

IMAGE_SUFFIXES = frozenset(extension[1:] for extension in EXTENSIONS)
"""Suffixes of the image itself."""
_MASKS = ("mask", "seg", "label", "annotation")
_PICKLED = frozenset({"pyd", "pickle", "pkl", "pth", "pt"})
_OWN = frozenset({"image", "label", "meta", "id", "valid"})
"""Names that a further field cannot have."""
_NAME = re.compile("[a-z0-9_]{1,32}")


def picture_kind(name: str) -> ExtraKind:
    """What a picture of this name is: `depth`, `mask` or a further `image`."""
    return "depth" if "depth" in name else "mask" if any(word in name for word in _MASKS) else "image"


def field_of(suffix: str) -> Extra | None:
    """What a suffix means; None where nothing is known."""
    name, _, codec = suffix.rpartition(".")
    if codec in IMAGE_SUFFIXES and _NAME.fullmatch(name):
        return Extra(name, picture_kind(name))
    if suffix in {"txt", "json"}:
        return Extra(suffix, "text" if suffix == "txt" else "json")
    if suffix in {"caption", "text"} or (codec == "txt" and _NAME.fullmatch(name)):
        return Extra(name or suffix, "text")
    return Extra(name, "json") if codec == "json" and _NAME.fullmatch(name) else None


def fields_of(counts: Mapping[str, int], samples: int) -> tuple[list[tuple[Extra, str]], bool, list[str]]:
    """Fields of a whole source.

    Args:
        counts: of samples that have a suffix, without those of images.
        samples: of all.

    Returns:
        Fields beside the image with their suffixes, whether there are labels, and sentences on what was left out.
    """
    extras, left, notices = dict[str, tuple[Extra, str]](), Counter[str](), list[str]()
    for suffix, count in sorted(counts.items()):
        extra = field_of(suffix)
        if suffix in _PICKLED or suffix.rpartition(".")[2] in _PICKLED:
            notices.append(f"{count} files of field {suffix!r} were left out: reading pickled values runs their code")
        elif extra is None or extra.name in extras or extra.name in _OWN or (extra.kind == "image" and count < samples):
            left[suffix] += 0 if suffix == "cls" else count
        else:
            extras[extra.name] = extra, suffix
    if +left:
        kinds = ", ".join(f"{count} {suffix or '(no name)'}" for suffix, count in (+left).items())
        notices.append(f"fields that were left out: {kinds}")
    return list(extras.values()), "cls" in counts, notices
