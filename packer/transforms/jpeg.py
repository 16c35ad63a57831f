"""JPEGs by libjpeg-turbo, at a fraction of their size where that is enough.

A JPEG much larger than what it is resized to is decoded at 1/2, 1/4 or 1/8 (libjpeg's DCT scaling; other fractions have
no SIMD and are slower than a full decode), so that both sides keep at least 1.5 times the target.
"""

from __future__ import annotations

import io
import struct
import warnings
from typing import Protocol

import simplejpeg
from PIL import Image

from packer.transforms.picture import Picture, Reduced, turned
from packer_reader.errors import SampleError

__all__ = ["ORIENTATION", "Target", "decode_jpeg", "jpeg_orientation"]

_DCT_MARGIN = 1.5
"""Sides of a reduced decode, in sides of the target: below it, DCT scaling shows (worst 44 dB at 1.5)."""
ORIENTATION = 0x0112
"""EXIF's tag."""


class Target(Protocol):
    """What a picture of a size will be resized to."""

    @property
    def side(self) -> int:
        """The longer side of every result is at least this, unless the picture is smaller."""

    def __call__(self, height: int, width: int, /) -> tuple[int, int]:
        """Height and width after scaling, of an upright picture."""


def decode_jpeg(
    data: bytes, size: tuple[int, int], turn: int, target: Target | None, *, gray: bool, plain: bool
) -> Picture | None:
    """Decode with libjpeg-turbo; None when only stray bytes behind the last pixel made it refuse."""
    divisor = _divisor(size, turn, target)
    least = (-(-size[0] // divisor), -(-size[1] // divisor)) if divisor > 1 else (0, 0)
    try:
        pixels = simplejpeg.decode_jpeg(data, "GRAY" if gray else "RGB", min_height=least[0], min_width=least[1])
    except ValueError as error:
        if str(error).endswith("extraneous bytes before marker 0xd9"):
            return None
        if str(error).startswith("Premature end of JPEG"):
            raise SampleError("truncated", "the JPEG ends before its pixels do") from None
        raise SampleError("corrupt", "the JPEG's data are damaged") from None
    upright = size if turn < 5 else size[::-1]
    if divisor == 1:
        return Picture(turned(pixels, turn), "jpg", plain=plain, size=upright, turn=turn)
    extent = (size[0] / divisor, size[1] / divisor)
    return Picture(pixels, "jpg", plain=False, size=upright, reduced=Reduced(extent, turn), turn=turn)


def _divisor(size: tuple[int, int], turn: int, target: Target | None) -> int:
    """The largest of 8, 4, 2 that keeps both sides well above the target, or 1."""
    if target is None or max(size) < 2 * _DCT_MARGIN * target.side:
        return 1
    rows, columns = target(*size) if turn < 5 else target(*size[::-1])[::-1]
    fits = [d for d in (8, 4, 2) if size[0] >= _DCT_MARGIN * rows * d and size[1] >= _DCT_MARGIN * columns * d]
    return max(fits, default=1)


def jpeg_orientation(data: bytes) -> int:
    """The EXIF orientation, 1 without one; EXIF is parsed only where a header segment says that it is there."""
    if not _has_exif(data):
        return 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            turn = Image.open(io.BytesIO(data), formats=["JPEG"]).getexif().get(ORIENTATION, 1)
    except (OSError, ValueError, SyntaxError, struct.error):
        return 1
    return turn if isinstance(turn, int) and 1 <= turn <= 8 else 1


def _has_exif(data: bytes) -> bool:
    """Whether a segment before the scan is an APP1 with EXIF; it may lie behind any amount of others."""
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # a fill byte
            place += 1
            continue
        if marker == 0xDA:
            return False
        if marker == 0xE1 and data[place + 4 : place + 10] == b"Exif\0\0":
            return True
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return False
