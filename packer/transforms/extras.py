"""Values of fields beside the image to stored bytes, under the image's geometry.

Annotations count in the upright image. Those that say they are of the image as its file has it, by a size that only
that one has, are turned with it. Further images have a geometry by their own size, which is that of the first one
where they are as large.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer.transforms.image import open_image, store_image
from packer.transforms.masks import store_mask
from packer_reader.boxes import kept, moved
from packer_reader.errors import SampleError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packer.fields import Extra
    from packer.recipe import Recipe
    from packer.transforms.geometry import Frame, Geometry

__all__ = ["store_extra"]

Pixels = npt.NDArray[Any]


def store_extra(
    extra: Extra, value: Any, frame: Frame, geometry: Geometry, recipe: Recipe
) -> tuple[bytes, tuple[float, ...]]:
    """Encode one value.

    Args:
        extra: the field.
        value: as the source holds it: a mask's file, text, a number, or what JSON can hold.
        frame: of the sample's image before the geometry.
        geometry: of the sample.
        recipe: what is made.

    Returns:
        The stored bytes, and the values of its columns.

    Raises:
        SampleError: it cannot be stored.
    """
    if extra.kind in {"mask", "depth"}:
        data, bits = store_mask(extra, value, frame, geometry, recipe)
        return data, (bits,)
    if extra.kind == "image":
        image = store_image(value, open_image(value, recipe), extra.picture, recipe)
        return image.data, image.size
    if extra.kind == "boxes":
        return _store_boxes(value, frame, geometry, recipe), ()
    if extra.kind == "text":
        return _encoded("" if value is None else str(value), extra.name), ()
    if extra.kind == "number":
        number = int(value) if extra.dtype == "int64" else float(value)
        text = json.dumps(number) if math.isfinite(number) else "null"
        return text.encode(), (number,)
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        raise SampleError("unsupported", f"field {extra.name!r} holds NaN or infinity, or is nested too deep") from None
    return _encoded(text, extra.name), ()


def _encoded(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeError:
        raise SampleError("unsupported", f"the text of field {name!r} is not UTF-8") from None


def _store_boxes(value: Mapping[str, Any], frame: Frame, geometry: Geometry, recipe: Recipe) -> bytes:
    """Boxes in the frame of the stored image, with the affine that takes the original's pixels there."""
    upright, declared = frame.size, tuple(value.get("size") or frame.size)
    if declared not in {upright, frame.raw}:
        raise SampleError(
            "mismatch",
            f"the annotations are of {declared[1]} x {declared[0]} pixels, the upright image has {upright[1]} x "
            f"{upright[0]}",
        )
    scale = geometry.scaled[1] / upright[1], geometry.scaled[0] / upright[0]
    top, left, rows, columns = geometry.crop
    above, before = geometry.pad
    shift = float(before - left), float(above - top)
    given = np.array(value["boxes"], np.float64).reshape(-1, 4)
    if value.get("shares"):
        given = moved(given, (upright[1], upright[0]), (0, 0))
    elif declared != upright:
        given = _turned(given, frame)
    boxes = moved(given, scale, shift)
    boxes, good = kept(
        boxes, (before, above, before + columns, above + rows), recipe.min_box_size, recipe.min_visibility
    )
    document = {
        "boxes": boxes[good].astype(np.float32).tolist(),
        **{
            name: [one for one, keep in zip(values, good.tolist(), strict=True) if keep]
            for name, values in value.items()
            if name not in {"boxes", "size", "shares", "orig_size", "affine"}
        },
        "orig_size": value.get("orig_size", list(upright)),
        "affine": _behind(value.get("affine", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), scale, shift),
    }
    return json.dumps(document, sort_keys=True).encode()


def _turned(boxes: Pixels, frame: Frame) -> Pixels:
    """Boxes of an image that lies on its side, in the upright one."""
    height, width = frame.size
    x1, y1, x2, y2 = boxes[:, [1, 0, 3, 2]].T  # the sides change places: EXIF orientation 5
    if frame.turn in {6, 7}:
        x1, x2 = width - x2, width - x1
    if frame.turn in {7, 8}:
        y1, y2 = height - y2, height - y1
    return np.stack([x1, y1, x2, y2], 1)


def _behind(affine: list[list[float]], scale: tuple[float, float], shift: tuple[float, float]) -> list[list[float]]:
    """An affine and then another one: boxes of a store that is resized again lead back to the first original."""
    (a, _, x), (_, d, y) = affine
    return [[a * scale[0], 0.0, x * scale[0] + shift[0]], [0.0, d * scale[1], y * scale[1] + shift[1]]]
