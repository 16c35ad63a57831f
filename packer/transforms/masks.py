"""Masks and depth maps: indices and measures, not colours, so that they are never blended.

Resizing takes the pixel whose centre is nearest, as Pillow's NEAREST does; a palette's indices stay indices; 16 bits
stay 16 bits; one bit becomes 0 and 1. Around a padded image a mask has the ignore label, a depth map 0.
"""

from __future__ import annotations

import io
import re
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from packer.transforms.decode import no_limit_but_ours
from packer.transforms.picture import turned
from packer_reader.errors import SampleError
from packer_reader.resize import nearest

if TYPE_CHECKING:
    from packer.fields import Extra
    from packer.recipe import Recipe
    from packer.transforms.geometry import Frame, Geometry

__all__ = ["decode_mask", "is_lossy", "store_mask"]

Pixels = npt.NDArray[Any]

_FORMATS = ("PNG", "TIFF", "BMP", "GIF", "PPM", "WEBP", "JPEG")
_PNG_LEVEL = 3
_WIDE = ("I;16", "I;16B", "I;16L", "I")


def store_mask(extra: Extra, value: bytes, frame: Frame, geometry: Geometry, recipe: Recipe) -> tuple[bytes, float]:
    """Encode a mask or a depth map.

    Args:
        extra: the field.
        value: the mask's file.
        frame: of the sample's image.
        geometry: of the sample.
        recipe: what is made.

    Returns:
        A PNG, and the bits that a value has there.

    Raises:
        SampleError: it is no mask of this image.
    """
    pixels = decode_mask(value, extra.name, recipe.max_pixels)
    if pixels.shape == frame.raw != frame.size:
        pixels = turned(pixels, frame.turn)
    if pixels.shape != frame.size:
        height, width = pixels.shape
        raise SampleError(
            "mismatch",
            f"the {extra.name} has {width} x {height} pixels, the upright image {frame.size[1]} x {frame.size[0]}",
        )
    if extra.kind == "mask" and recipe.reduce_zero_label:
        pixels = _without_zero(pixels, recipe.ignore_label)
    if extra.kind == "mask" and recipe.label_map:
        pixels = _table(recipe.label_map, recipe.ignore_label)[pixels]
    if extra.kind == "mask" and recipe.check_labels:
        _check_labels(pixels, extra.name, recipe)
    scaled = nearest(pixels, *geometry.scaled)
    top, left, rows, columns = geometry.crop
    cut = scaled[top : top + rows, left : left + columns]
    if geometry.size != cut.shape:
        padded = np.full(geometry.size, recipe.ignore_label if extra.kind == "mask" else 0, pixels.dtype)
        above, before = geometry.pad
        padded[above : above + rows, before : before + columns] = cut
        cut = padded
    done, buffer = cv2.imencode(".png", np.ascontiguousarray(cut), [cv2.IMWRITE_PNG_COMPRESSION, _PNG_LEVEL])
    assert done
    return bytes(buffer), 8 * pixels.itemsize


@lru_cache(maxsize=4)
def _table(label_map: tuple[tuple[int, int], ...], ignore: int) -> Pixels:
    """The new label of each, (65536,), in 8 bits where these hold all."""
    table = np.full(1 << 16, ignore, np.uint16)
    for old, new in label_map:
        table[old] = new
    return table if int(table.max()) > 255 else table.astype(np.uint8)


def _check_labels(pixels: Pixels, name: str, recipe: Recipe) -> None:
    counts = np.bincount(pixels.ravel(), minlength=1)
    known = np.zeros(len(counts), np.bool_)
    for first, last in (*recipe.check_labels, (recipe.ignore_label, recipe.ignore_label)):
        known[first : last + 1] = True
    unknown = np.flatnonzero(counts * ~known)
    if len(unknown):
        label = int(unknown[0])
        more = f" and {len(unknown) - 1} other labels" if len(unknown) > 1 else ""
        raise SampleError(
            "mismatch",
            f"the {name} has label {label} in {counts[label]} pixels{more}, outside of --check-labels",
        )


def _without_zero(pixels: Pixels, ignore: int) -> Pixels:
    """Label 0 means nothing (ADE20K): it becomes the ignore label, all others one less."""
    if bool((pixels == ignore + 1).any()):
        raise SampleError("unsupported", f"label {ignore + 1} would become the ignore label: --ignore-label another")
    return np.where((pixels == 0) | (pixels == ignore), ignore, pixels - 1).astype(pixels.dtype)


def is_lossy(data: bytes) -> bool:
    """Whether a picture is a JPEG or a lossy WebP: its labels are not those that were drawn."""
    return data[:2] == b"\xff\xd8" or (data[:4] == b"RIFF" and data[8:12] == b"WEBP" and b"VP8 " in data[:32])


def _check_picture(picture: Image.Image, data: bytes, name: str, max_pixels: int) -> None:
    """Refuse by its header what cannot be a mask."""
    if picture.width * picture.height > max_pixels:
        size = f"{picture.width} x {picture.height}"
        raise SampleError("too-large", f"the {name} has {size} pixels, over the limit (--max-pixels)")
    if is_lossy(data):
        raise SampleError("unsupported", f"the {name} is a lossy picture, which invents labels: save it as PNG")
    if picture.format == "TIFF" and picture.mode != "F" and _bits(picture) not in {1, 8, 16, 32}:
        raise SampleError("unsupported", f"the {name} is a TIFF of {_bits(picture)} bits: save it as PNG")


def _bits(picture: Image.Image) -> int:
    """Of a TIFF's values; Pillow stretches those of 2 and 4."""
    found: Any = getattr(picture, "tag_v2", {}).get(258, (8,))
    return int(found[0] if isinstance(found, tuple) else found)


def _stretch(data: bytes, name: str) -> int:
    """By what Pillow has multiplied gray values of fewer than 8 bits.

    Raises:
        SampleError: they cannot be had back.
    """
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[25] == 0:
        return {2: 85, 4: 17}.get(data[24], 1)
    found = re.match(rb"P[25](?:\s|#[^\n]*\n)+\d+(?:\s|#[^\n]*\n)+\d+(?:\s|#[^\n]*\n)+(\d+)", data)
    if found is not None and int(found[1]) not in {255, 65535}:
        raise SampleError("unsupported", f"the {name} is a PGM of maximum {int(found[1])}: save it as PNG")
    return 1


def decode_mask(data: bytes, name: str, max_pixels: int) -> Pixels:
    """The indices of a mask, uint8 or uint16 (h, w).

    Raises:
        SampleError: it is no picture, has colours, or its values are lossy or too large.
    """
    try:
        with warnings.catch_warnings(), no_limit_but_ours():
            warnings.simplefilter("ignore")
            picture = Image.open(io.BytesIO(data), formats=_FORMATS)
            _check_picture(picture, data, name, max_pixels)
            pixels = np.asarray(picture)
    except UnidentifiedImageError:
        raise SampleError("not-an-image", f"the {name} is no picture") from None
    except SampleError:
        raise
    except Exception:  # noqa: BLE001 - codecs raise many kinds, and one bad sample may not stop the others
        raise SampleError("truncated", f"the {name} is damaged or ends early") from None
    if picture.mode == "1":
        return pixels.astype(np.uint8)
    if picture.mode in {"L", "P"}:
        return pixels // _stretch(data, name) if picture.mode == "L" else pixels
    _stretch(data, name)
    if picture.mode in _WIDE and pixels.size and int(pixels.min()) >= 0 and int(pixels.max()) < 1 << 16:
        return pixels.astype(np.uint16)
    raise SampleError(
        "unsupported", f"the {name} has mode {picture.mode}: labels are the indices of one channel of up to 16 bits"
    )
