"""One source picture to one stored image field."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from packer.transforms.decode import decode
from packer.transforms.encode import encode
from packer.transforms.geometry import Geometry, fit
from packer.transforms.picture import Picture, picture_of, turned
from packer_reader.decode import decode_image
from packer_reader.errors import SampleError, StoreError
from packer_reader.format.fields import SOURCE_CODECS, FieldSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from packer.recipe import Recipe

__all__ = ["StoredImage", "moments", "open_image", "store_image"]

Pixels = npt.NDArray[Any]
P = ParamSpec("P")
T = TypeVar("T")

_EXACT_NORM = 1 << 27
"""Pixels up to which the sum of squares that OpenCV gives as a double is exact."""
_KEPT = 1 << 22
"""Pixels up to which memory is kept for the next image."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image as the store holds it."""

    data: bytes
    size: tuple[int, int]
    """Height and width."""
    moments: tuple[int, ...]
    """Per channel the sum of its values, then per channel the sum of their squares."""
    source_codec: int
    """Place in `SOURCE_CODECS` of what the source was."""
    geometry: Geometry
    """What was done to the upright image, for the other fields of the sample."""


def _sample_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Libraries refuse sizes of their own; one odd picture may not stop the others."""

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except MemoryError:
            raise SampleError("too-large", "there was not enough memory to convert it") from None
        except (ValueError, RuntimeError, cv2.error):
            raise SampleError("unsupported", "a library refused to resize or encode it") from None

    return guarded


@_sample_errors
def open_image(image: Any, recipe: Recipe) -> Picture:
    """Decode, for one size or several.

    Args:
        image: encoded bytes, or pixels: uint8 or uint16 (h, w) or (h, w, c).
        recipe: what will be made of it.

    Raises:
        SampleError: the picture cannot be decoded.
    """
    if not isinstance(image, bytes):
        return picture_of(image, gray=recipe.gray, bits=recipe.bits)
    target = None if recipe.resize is None or recipe.exact else _Largest(recipe)
    return decode(image, gray=recipe.gray, max_pixels=recipe.max_pixels, bits=recipe.bits, target=target)


@_sample_errors
def store_image(image: Any, picture: Picture, codec: str, recipe: Recipe) -> StoredImage:
    """Resize and encode; or keep the bytes where nothing changes.

    Args:
        image: what `picture` was opened from.
        picture: by `open_image`, for this size among others.
        codec: of the stored image.
        recipe: of one size.

    Raises:
        SampleError: the picture cannot be stored.
    """
    geometry = fit(*picture.size, recipe)
    if geometry.scaled[0] * geometry.scaled[1] > recipe.max_pixels:
        size = f"{geometry.scaled[1]} x {geometry.scaled[0]}"
        raise SampleError("too-large", f"resizing makes it {size} pixels, over the limit (--max-pixels)")
    pixels = _apply(picture, geometry)
    source = SOURCE_CODECS.index(picture.codec) if picture.codec in SOURCE_CODECS else 0
    same = geometry.scaled == picture.size and not geometry.changes
    if same and recipe.encode == "keep" and _kept_codec(picture) == codec and _reader_agrees(image, picture, recipe):
        return StoredImage(image, picture.size, moments(pixels), source, geometry)
    data = encode(pixels, codec, recipe.quality, roi=recipe.roi)
    return StoredImage(data, geometry.size, moments(pixels), source, geometry)


@dataclass(frozen=True, slots=True)
class _Largest:
    """What the largest size of a recipe makes of a picture, before it is cropped."""

    recipe: Recipe

    @property
    def side(self) -> int:
        assert self.recipe.resize is not None
        return min(self.recipe.resize)

    def __call__(self, height: int, width: int) -> tuple[int, int]:
        recipe = self.recipe
        if not all(recipe.sizes):
            return height, width
        sizes = [replace(recipe, resize=size) for size in recipe.sizes] or [recipe]
        scaled = [fit(height, width, each).scaled for each in sizes]
        return max(rows for rows, _ in scaled), max(columns for _, columns in scaled)


def _kept_codec(picture: Picture) -> str:
    return "png" if picture.codec == "png16" and picture.pixels.dtype == np.uint16 else picture.codec


def _reader_agrees(data: bytes, picture: Picture, recipe: Recipe) -> bool:
    """Whether the reader's decoder gives the same pixels from the original bytes, so that they may be kept.

    JPEG has one decoder here and there; other formats have two, and Pillow takes files that OpenCV refuses.
    """
    if not picture.plain or picture.codec == "jpg":
        return picture.plain
    shape = picture.pixels.shape
    codec = _kept_codec(picture)
    field = FieldSpec("image", "image", codec, codec, recipe.dtype, shape, shape)
    try:
        return bool((decode_image(field, data) == picture.pixels).all())
    except StoreError:
        return False


def _apply(picture: Picture, geometry: Geometry) -> Pixels:
    pixels = _scaled(picture, *geometry.scaled)
    top, left, rows, columns = geometry.crop
    pixels = pixels[top : top + rows, left : left + columns]
    if geometry.size == (rows, columns):
        return pixels
    padded = np.zeros((*geometry.size, pixels.shape[2]), pixels.dtype)
    above, before = geometry.pad
    padded[above : above + rows, before : before + columns] = pixels
    return padded


def _scaled(picture: Picture, rows: int, columns: int) -> Pixels:
    if picture.pixels.shape[:2] == (rows, columns) and picture.reduced is None:
        return picture.pixels
    from packer_reader.resize import resize  # noqa: PLC0415 - torch loads when something is resized

    if picture.reduced is None:
        return resize(picture.pixels, rows, columns)
    turn = picture.reduced.turn
    size = (rows, columns) if turn < 5 else (columns, rows)
    return turned(resize(picture.pixels, *size, extent=picture.reduced.extent), turn)


def moments(pixels: Pixels) -> tuple[int, ...]:
    """Per channel the sum of its values, then per channel the sum of their squares: mean and deviation follow exactly.

    For 256x256x3 in uint8 this takes 30 us between other work (15 from a warm cache, 23 more when the planes are
    allocated anew), histograms 66, numpy 1,200.
    """
    area, channels = pixels.shape[0] * pixels.shape[1], pixels.shape[2]
    if pixels.dtype != np.uint8 or area > _EXACT_NORM:
        wide = pixels.reshape(-1, channels).astype(np.uint64)
        return tuple(map(int, [*wide.sum(0), *np.einsum("nc,nc->c", wide, wide)]))
    pixels = np.ascontiguousarray(pixels)
    planes = cv2.split(pixels, _planes(*pixels.shape) if area <= _KEPT else None)
    squares = [cv2.norm(plane, cv2.NORM_L2SQR) for plane in planes]
    return tuple(map(int, (*cv2.sumElems(pixels)[:channels], *squares)))


@lru_cache(maxsize=1)
def _planes(height: int, width: int, channels: int) -> list[Pixels]:
    """Memory for the channels of one image, used again by the next of its size."""
    return [np.empty((height, width), np.uint8) for _ in range(channels)]
