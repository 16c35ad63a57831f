"""A contact sheet: some samples of a store in one picture."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

from packer_reader.errors import UsageError, os_error
from packer_reader.format.names import line_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from packer_reader.stores.base import Store

__all__ = ["contact_sheet", "save_sheet"]

_CELL, _TEXT, _GAP = 160, 26, 6
"""Pixels: side of a picture, height of the two lines under it, space between."""
_MOST = 1024
"""Samples on a sheet."""


def contact_sheet(store: Store, numbers: Sequence[int]) -> Image.Image:
    """Draw samples in rows, each with its number, class and source below.

    Raises:
        UsageError: the store has no images, or there are too many samples for a sheet.
        StoreError: a sample is damaged.
    """
    field = next((f.name for f in store.manifest.fields if f.kind == "image"), None)
    if field is None:
        raise UsageError(f"{store!r} has no images to draw: leave -o out")
    if not 1 <= len(numbers) <= _MOST:
        raise UsageError(f"a sheet holds 1 to {_MOST} samples, not {len(numbers)}: take fewer")
    columns = math.ceil(math.sqrt(len(numbers)))
    rows = math.ceil(len(numbers) / columns)
    step = _CELL + _GAP, _CELL + _TEXT + _GAP
    sheet = Image.new("RGB", (columns * step[0] + _GAP, rows * step[1] + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for place, number in enumerate(numbers):
        left, top = _GAP + place % columns * step[0], _GAP + place // columns * step[1]
        sample = store[number]
        picture = _thumbnail(sample[field])
        sheet.paste(picture, (left + (_CELL - picture.width) // 2, top + (_CELL - picture.height) // 2))
        name = _class_name(store, sample)
        draw.text((left, top + _CELL), _short(f"{number} {name}"), fill="black")
        draw.text((left, top + _CELL + _TEXT // 2), _short(line_text(store.source(number)), end=True), fill="gray")
    return sheet


def save_sheet(sheet: Image.Image, path: Path) -> None:
    """Write a sheet; the format follows the name.

    Raises:
        UsageError: the name has no ending that is a picture's.
        OutputError: the file cannot be written.
    """
    if path.suffix.lower() not in {".png", ".jpg", ".jpeg", ".webp"}:
        raise UsageError(f"{str(path)!r} is no picture's name: end it in .png, .jpg or .webp")
    try:
        sheet.save(path)
    except OSError as error:
        raise os_error(error, "writing", path) from error


def _thumbnail(pixels: Any) -> Image.Image:
    if pixels.dtype == np.uint16:
        pixels = (pixels // 257).astype(np.uint8)
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((_CELL, _CELL))
    return picture


def _class_name(store: Store, sample: dict[str, Any]) -> str:
    label = sample.get("label", -1)
    return line_text(store.classes[label]) if store.classes is not None and label >= 0 else ""


def _short(text: str, *, end: bool = False, most: int = 25) -> str:
    """ASCII that fits under a picture: its beginning, or its end."""
    plain = text.encode("ascii", "replace").decode()
    if len(plain) <= most:
        return plain
    return "..." + plain[3 - most :] if end else plain[: most - 3] + "..."
