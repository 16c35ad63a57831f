"""Pixels to stored bytes: one codec per store."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg

from packer_reader.errors import SampleError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["encode"]

Pixels = npt.NDArray[np.uint8]

_PNG_LEVEL = 3
_TILE = 32
"""Columns of a tile at least: finer ones cost bytes (2.5 % at 32), coarser ones are decoded in vain."""
_SIDES = {"jpg": 65_500, "png": 1_000_000, "webp": 16_383}
"""Largest side that a codec's library takes, in pixels."""


def encode(pixels: Pixels, codec: str, quality: int, *, roi: bool = False) -> bytes:
    """Encode an image.

    Args:
        pixels: uint8 (h, w, c), c being 1 or 3 (RGB).
        codec: `jpg`, `png`, `webp` or `npy`.
        quality: of JPEG and WebP, 1 to 100.
        roi: write a JPEG in tiles that decode on their own, of 32 or more pixels by one row of MCUs.

    Raises:
        SampleError: `too-large` for the codec.
    """
    if max(pixels.shape[:2]) > _SIDES.get(codec, 1 << 31):
        raise SampleError("too-large", f"{codec} holds at most {_SIDES[codec]} pixels a side (--encode, --resize)")
    if roi:
        return _tiled(pixels, quality)
    return _ENCODERS[codec](np.ascontiguousarray(pixels), quality)


def _tiled(pixels: Pixels, quality: int) -> bytes:
    """By OpenCV, since simplejpeg writes no restart markers; both have libjpeg-turbo's encoder."""
    mcu = 8 if pixels.shape[2] == 1 else 16
    across = -(-pixels.shape[1] // mcu)
    finest, coarsest = _TILE // mcu, 4 * _TILE // mcu
    interval = next((count for count in range(finest, coarsest + 1) if across % count == 0), across)
    sampling = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420]
    options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_RST_INTERVAL, interval, *sampling]
    return _cv2(pixels, ".jpg", options)


def _jpg(pixels: Pixels, quality: int) -> bytes:
    if pixels.shape[2] == 1:
        return bytes(simplejpeg.encode_jpeg(pixels, quality, "GRAY", "Gray"))
    return bytes(simplejpeg.encode_jpeg(pixels, quality, "RGB", "420"))


def _cv2(pixels: Pixels, suffix: str, options: list[int]) -> bytes:
    ordered = pixels if pixels.shape[2] == 1 else cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    done, buffer = cv2.imencode(suffix, ordered, options)
    assert done
    return bytes(buffer)


def _png(pixels: Pixels, _: int) -> bytes:
    return _cv2(pixels, ".png", [cv2.IMWRITE_PNG_COMPRESSION, _PNG_LEVEL])


def _webp(pixels: Pixels, quality: int) -> bytes:
    return _cv2(pixels, ".webp", [cv2.IMWRITE_WEBP_QUALITY, quality])


def _npy(pixels: Pixels, _: int) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(pixels))
    return b"".join([header.getvalue(), pixels.data])


_ENCODERS: dict[str, Callable[[Pixels, int], bytes]] = {"jpg": _jpg, "png": _png, "webp": _webp, "npy": _npy}
