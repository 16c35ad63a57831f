"""Images as data sets in Python give them: bytes, Pillow images, arrays, tensors. Knows them by what they can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from packer_reader.errors import SampleError

__all__ = ["pixels_or_bytes"]


def pixels_or_bytes(image: Any) -> Any:
    """Encoded bytes, or a uint8 or uint16 array (h, w) or (h, w, c).

    Raises:
        SampleError: `unsupported`, it is no image.
    """
    if isinstance(image, Mapping):  # an undecoded image of Hugging Face
        data = image.get("bytes")
        if data is None:
            with open(image["path"], "rb") as file:  # noqa: PTH123
                data = file.read()
        image = data
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if hasattr(image, "detach"):  # a tensor has its channels first
        pixels = np.asarray(image.detach().cpu())
        pixels = pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels
    elif hasattr(image, "getbands"):
        pixels = _pillow_pixels(image)
    else:
        pixels = np.asarray(image)
    if pixels.dtype not in {np.dtype(np.uint8), np.dtype(np.uint16)} or pixels.ndim not in {2, 3}:
        what = f"{pixels.dtype} of {pixels.ndim} dimensions"
        raise SampleError("unsupported", f"the image is {what}, it must be uint8 or uint16 of 2 or 3")
    return np.ascontiguousarray(pixels)


_UPRIGHT = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
"""EXIF orientation to the number of Pillow's transposition that undoes it."""


def _pillow_pixels(image: Any) -> Any:
    """Pixels of a Pillow image by the rules for files: upright, alpha dropped, palettes as colours."""
    turn = image.getexif().get(0x0112, 1)
    if turn in _UPRIGHT:
        image = image.transpose(_UPRIGHT[turn])
    if image.mode in {"I", "F"}:
        raise SampleError("unsupported", f"a Pillow image of mode {image.mode} has no known range")
    if image.mode in {"P", "PA", "LA", "RGBA"}:
        return np.asarray(image.convert("RGBA"))[..., :3]
    return np.asarray(image if image.mode in {"RGB", "L", "I;16"} else image.convert("RGB"))
