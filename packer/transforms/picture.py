"""A decoded picture, and the rules for bits, channels and orientation that hold for every format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from packer.transforms.geometry import Frame
from packer_reader.errors import SampleError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TURNS", "Picture", "Pixels", "Reduced", "picture_of", "turned", "widened", "with_bits", "with_channels"]

Pixels = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded picture."""

    pixels: Pixels
    """uint8, or uint16 with 16 bits, (h, w, c), c being 3, or 1 for gray."""
    codec: str
    """One of `SOURCE_CODECS`: `jpg`, `png`, ...; `png16`, `tiff16` where the source has 16 bits."""
    plain: bool
    """Whether the reader's decoder gives these very pixels from the original bytes."""
    size: tuple[int, int]
    """Upright height and width of the whole picture."""
    reduced: Reduced | None = None
    """Set when the pixels are smaller than the picture, and not upright yet."""
    turn: int = 1
    """EXIF orientation of the file."""

    @property
    def frame(self) -> Frame:
        """Where annotations of it lie."""
        return Frame(self.size, self.turn)


@dataclass(frozen=True, slots=True)
class Reduced:
    """A picture that was decoded at a fraction of its size."""

    extent: tuple[float, float]
    """Rows and columns that the whole picture covers; libjpeg rounds its sides up, and ignoring that shifts the image
    by up to half a pixel."""
    turn: int
    """EXIF orientation still to be applied."""


def picture_of(pixels: Pixels, *, gray: bool, bits: int) -> Picture:
    """Pixels that a Python data set gave, by the same rules.

    Args:
        pixels: uint8 or uint16 (h, w) or (h, w, c), c being 1, 3 or 4 (alpha, dropped).
        gray: one channel instead of three.
        bits: 8 or 16 per channel.

    Raises:
        SampleError: `unsupported`, another number of channels.
    """
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.shape[2] not in {1, 3, 4} or not pixels.size:
        raise SampleError("unsupported", f"the pixels are {pixels.shape}, images have 1, 3 or 4 channels, last")
    wide = pixels.dtype == np.uint16
    pixels = with_bits(pixels[..., : min(3, pixels.shape[2])], bits)
    return Picture(
        with_channels(pixels, gray=gray), "pixels16" if wide else "pixels", plain=False, size=pixels.shape[:2]
    )


def with_bits(pixels: Pixels, bits: int) -> Pixels:
    """The same picture with 8 or 16 bits per channel."""
    if pixels.dtype == np.uint16:
        return pixels if bits == 16 else ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8)
    return pixels if bits == 8 else widened(pixels)


def widened(pixels: Pixels) -> Pixels:
    """8 bits as 16: 255 becomes 65,535."""
    return pixels.astype(np.uint16) * np.uint16(257)


def with_channels(pixels: Pixels, *, gray: bool) -> Pixels:
    """(h, w, 1) for gray, (h, w, 3) otherwise."""
    if pixels.shape[2] == (1 if gray else 3):
        return np.ascontiguousarray(pixels)
    if not gray:
        return np.repeat(pixels, 3, axis=2)
    if pixels.dtype == np.uint8:
        return np.array(Image.fromarray(np.ascontiguousarray(pixels)).convert("L"))[..., None]
    return np.asarray(cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2GRAY))[..., None]


TURNS: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.swapaxes(0, 1),
    6: lambda p: np.rot90(p, -1),
    7: lambda p: p.swapaxes(0, 1)[::-1, ::-1],
    8: lambda p: np.rot90(p, 1),
}


def turned(pixels: Pixels, turn: int) -> Pixels:
    """An EXIF orientation undone."""
    return np.ascontiguousarray(TURNS[turn](pixels))
