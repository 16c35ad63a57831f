"""One source picture to one stored image field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import cv2
import numpy as np
import numpy.typing as npt

from packer.transforms.decode import Picture, decode
from packer.transforms.encode import encode
from packer.transforms.geometry import Geometry, fit
from packer_reader.decode import decode_image
from packer_reader.errors import SampleError, StoreError
from packer_reader.format.fields import FieldSpec
from packer_reader.resize import resize

if TYPE_CHECKING:
    from packer.recipe import Recipe

__all__ = ["StoredImage", "histogram", "store_image"]

Pixels = npt.NDArray[np.uint8]

_EXACT_FLOAT = 1 << 24
"""calcHist counts in float32, which is exact up to here."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image as the store holds it."""

    data: bytes
    size: tuple[int, int]
    """Height and width."""
    histogram: npt.NDArray[np.int64]
    """Pixels by value, int64 (c, 256)."""
    reencoded: str | None
    """`from>to` when the codec changed."""


def store_image(data: bytes, codec: str, recipe: Recipe) -> StoredImage:
    """Decode, resize, encode; or keep the bytes where nothing changes.

    Raises:
        SampleError: the picture cannot be decoded.
    """
    try:
        return _store(data, codec, recipe)
    except MemoryError:
        raise SampleError("too-large", "there was not enough memory to convert it") from None
    except (ValueError, RuntimeError, cv2.error):
        # Libraries refuse sizes of their own; one odd picture may not stop the others.
        raise SampleError("unsupported", "a library refused to resize or encode it") from None


def _store(data: bytes, codec: str, recipe: Recipe) -> StoredImage:
    picture = decode(data, gray=recipe.gray, max_pixels=recipe.max_pixels)
    height, width = picture.pixels.shape[:2]
    geometry = fit(height, width, recipe)
    if geometry.scaled[0] * geometry.scaled[1] > recipe.max_pixels:
        size = f"{geometry.scaled[1]} x {geometry.scaled[0]}"
        raise SampleError("too-large", f"resizing makes it {size} pixels, over the limit (--max-pixels)")
    pixels = _apply(picture.pixels, geometry)
    reencoded = f"{picture.codec}>{codec}" if picture.codec != codec else None
    same = geometry.scaled == (height, width) and not geometry.changes
    if same and recipe.encode == "keep" and picture.codec == codec and _reader_agrees(data, picture):
        return StoredImage(data, (height, width), histogram(pixels), None)
    return StoredImage(encode(pixels, codec, recipe.quality), geometry.size, histogram(pixels), reencoded)


def _reader_agrees(data: bytes, picture: Picture) -> bool:
    """Whether the reader's decoder gives the same pixels from the original bytes, so that they may be kept.

    JPEG has one decoder here and there; other formats have two, and Pillow takes files that OpenCV refuses.
    """
    if not picture.plain or picture.codec == "jpg":
        return picture.plain
    shape = picture.pixels.shape
    field = FieldSpec("image", "image", picture.codec, picture.codec, "uint8", shape, shape)
    try:
        return bool((decode_image(field, data) == picture.pixels).all())
    except StoreError:
        return False


def _apply(pixels: Pixels, geometry: Geometry) -> Pixels:
    pixels = resize(pixels, *geometry.scaled)
    top, left, rows, columns = geometry.crop
    pixels = pixels[top : top + rows, left : left + columns]
    if geometry.size == (rows, columns):
        return pixels
    padded = np.zeros((*geometry.size, pixels.shape[2]), np.uint8)
    above, before = geometry.pad
    padded[above : above + rows, before : before + columns] = pixels
    return padded


def histogram(pixels: Pixels) -> npt.NDArray[np.int64]:
    """Pixels by value for each channel, int64 (c, 256).

    `cv2.calcHist` takes 66 us for 256x256x3, numpy sums 1,200; the sums that mean and deviation need follow exactly.
    """
    channels = pixels.shape[2]
    if pixels.shape[0] * pixels.shape[1] >= _EXACT_FLOAT:
        return np.stack([np.bincount(pixels[..., c].ravel(), minlength=256) for c in range(channels)])
    pixels = np.ascontiguousarray(pixels)
    counts = [cv2.calcHist([pixels], [c], None, [256], [0, 256]) for c in range(channels)]
    return np.stack(counts).reshape(channels, 256).astype(np.int64)
