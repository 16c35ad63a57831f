"""A contact sheet: some samples of a store in one picture, masks and boxes drawn over, tokens as text."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

from packer_reader.boxes import arrays_of
from packer_reader.errors import UsageError, os_error
from packer_reader.format.names import line_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from packer_reader.format.fields import FieldSpec
    from packer_reader.stores.base import Store

__all__ = ["can_draw", "contact_sheet", "save_sheet", "spread"]

_CELL, _TEXT, _GAP = 160, 26, 6
"""Pixels: side of a picture, height of the two lines under it, space between."""
_MOST = 1024
"""Samples on a sheet."""
_PAGE, _COLUMNS, _LINE = 320, 50, 12
"""Of a cell of text: pixels of its width, letters of a line, pixels of its height."""
_COLOURS = 0.5
"""Share of a label's colour over the image."""


def spread(total: int, count: int) -> list[int]:
    """Numbers of so many samples, from the first to the last; all where there are no more."""
    count = min(count, total)
    return [place * (total - 1) // max(1, count - 1) for place in range(count)]


def can_draw(store: Store) -> bool:
    """Whether a store has something to draw: images, or text."""
    return any(field.kind == "image" for field in store.manifest.fields) or store.manifest.fields[0].kind == "tokens"


def contact_sheet(
    store: Store,
    numbers: Sequence[int],
    text_of: Callable[[Any], str] | None = None,
    heard: Callable[[int], None] = lambda _: None,
) -> Image.Image:
    """Draw samples in rows, each with its number, class and source below.

    Args:
        store: whose samples.
        numbers: of the samples.
        text_of: the text of tokens, int (n,); with a store of text.
        heard: told how many samples are done since it was told last.

    Raises:
        UsageError: the store has no images and no text, or there are too many samples for a sheet.
        StoreError: a sample is damaged.
    """
    fields = store.manifest.fields
    image = next((field for field in fields if field.kind == "image"), None)
    if image is None and (text_of is None or fields[0].kind != "tokens"):
        raise UsageError(f"{store!r} has no images to draw: leave -o out")
    if not 1 <= len(numbers) <= _MOST:
        raise UsageError(f"a sheet holds 1 to {_MOST} samples, not {len(numbers)}: take fewer")
    width = _CELL if image is not None else _PAGE
    columns = math.ceil(math.sqrt(len(numbers)))
    rows = math.ceil(len(numbers) / columns)
    step = width + _GAP, _CELL + _TEXT + _GAP
    sheet = Image.new("RGB", (columns * step[0] + _GAP, rows * step[1] + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for place, number in enumerate(numbers):
        left, top = _GAP + place % columns * step[0], _GAP + place // columns * step[1]
        sample = store[number]
        heard(1)
        if image is not None:
            picture = _picture(image, fields, sample, int(store.manifest.recipe.get("ignore_label", 255)))
        else:
            assert text_of is not None
            valid = sample.get("n_valid", len(sample[fields[0].name]))
            picture = _page(text_of(sample[fields[0].name][:valid]))
        sheet.paste(picture, (left + (width - picture.width) // 2, top + (_CELL - picture.height) // 2))
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


def _picture(image: FieldSpec, fields: Sequence[FieldSpec], sample: dict[str, Any], ignore: int) -> Image.Image:
    """An image that fits its cell, with what else is known of it drawn over."""
    pixels = sample[image.name]
    whole = pixels.shape[:2]
    picture = _thumbnail(pixels)
    for field in fields:
        if field.kind == "mask" and sample[field.name].shape == whole:
            picture = _over(picture, sample[field.name], ignore)
    for field in fields:
        if field.kind == "boxes":
            boxes, labels = arrays_of(sample[field.name])
            scale = np.array([picture.width / whole[1], picture.height / whole[0]] * 2)
            draw = ImageDraw.Draw(picture)
            for box, label in zip((boxes * scale).tolist(), labels.tolist(), strict=True):
                draw.rectangle(box, outline=tuple(_colour(np.array([label]))[0].tolist()), width=2)
    return picture


def _over(picture: Image.Image, mask: npt.NDArray[Any], ignore: int) -> Image.Image:
    """A picture under the colours of its labels; where a label is 0 or ignored, as it is."""
    small = np.array(Image.fromarray(mask.astype(np.int32)).resize(picture.size, Image.Resampling.NEAREST))
    shares = np.where((small == 0) | (small == ignore), 0.0, _COLOURS)[..., None]
    mixed = np.asarray(picture.convert("RGB")) * (1 - shares) + _colour(small) * shares
    return Image.fromarray(mixed.astype(np.uint8))


def _colour(labels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """A colour for each label, uint8 (..., 3): neighbours differ, and equal labels agree on every sheet."""
    number = labels.astype(np.int64)[..., None]
    colours: npt.NDArray[np.uint8] = ((number * np.array([97, 57, 149]) + np.array([255, 40, 90])) % 256).astype(
        np.uint8
    )
    return colours


def _page(text: str) -> Image.Image:
    """The beginning of a text, in lines."""
    page = Image.new("RGB", (_PAGE, _CELL), "whitesmoke")
    lines = [part for line in text[:2000].split("\n") for part in textwrap.wrap(line, _COLUMNS) or [""]]
    shown = "\n".join(lines[: _CELL // _LINE]).encode("ascii", "replace").decode()
    ImageDraw.Draw(page).multiline_text((4, 2), shown, fill="black", spacing=0, font_size=_LINE - 2)
    return page


def _thumbnail(pixels: Any) -> Image.Image:
    if pixels.dtype == np.uint16:
        pixels = (pixels // 257).astype(np.uint8)
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
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
