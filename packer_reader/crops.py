"""Geometry at decode time: which part of an image training sees, at which size.

Every random number comes from (seed, epoch, sample id), so a sample gets the same crop whatever the number of workers,
and another one each epoch.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from packer_reader.errors import UsageError
from packer_reader.opencv import opencv
from packer_reader.permutation import key
from packer_reader.resize import resize

__all__ = ["CenterCrop", "Crop", "Draw", "HorizontalFlip", "RandomResizedCrop", "Resize"]

Pixels = npt.NDArray[Any]

_AUGMENT = 32
"""First part of the hash keys of augmentation; the orders have 1 to 16."""
_TRIES = 10


class Draw:
    """Random numbers of one sample in one epoch."""

    def __init__(self, seed: int, epoch: int, sample: int) -> None:
        """Begin at the first number."""
        self._begun = key(_AUGMENT, seed, epoch, sample)
        self._drawn = 0

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """The next number, `low` included, `high` not."""
        self._drawn += 1
        return low + (high - low) * (key(self._drawn, begun=self._begun) / 2**64)

    def integer(self, stop: int) -> int:
        """The next whole number in `0..stop-1`."""
        return min(stop - 1, int(self.uniform(0, stop)))


class Crop(Protocol):
    """What `crop=` takes."""

    random: bool
    """Whether it draws."""

    def output(self, height: int | None, width: int | None) -> tuple[int, int] | None:
        """Size of the result for images of this size; None when results differ in size."""

    def __call__(self, pixels: Pixels, draw: Draw) -> Pixels:
        """The part to see, uint8 (h, w, c)."""


def _sides(size: object, what: str) -> tuple[int, int]:
    """Height and width from a number or a pair of them.

    Raises:
        UsageError: it is neither, or a side is under 1.
    """
    try:
        pair: Any = size if isinstance(size, tuple | list) else (size, size)
        height, width = (operator.index(side) for side in pair)
    except (TypeError, ValueError):
        raise UsageError(f"{what}({size!r}): the size must be a whole number, or (height, width)") from None
    if min(height, width) < 1:
        raise UsageError(f"{what}({size!r}): a side must be at least 1")
    return height, width


def _rising(pair: object) -> bool:
    """Whether this is (low, high), both over 0."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        return False
    numbers = [n for n in pair if isinstance(n, int | float)]
    return len(numbers) == 2 and 0 < numbers[0] <= numbers[1]


@dataclass(frozen=True)
class RandomResizedCrop:
    """A part of random area and ratio, resized: torchvision's transform of this name (Szegedy et al. 2014)."""

    size: int | tuple[int, int]
    """Height and width of the result."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Share of the image's area."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Width to height."""
    random = True

    def __post_init__(self) -> None:
        _sides(self.size, "RandomResizedCrop")
        if not _rising(self.scale) or not _rising(self.ratio):
            raise UsageError(f"{self!r}: scale and ratio must be (low, high), both over 0")

    def output(self, height: int | None, width: int | None) -> tuple[int, int]:  # noqa: ARG002 - the seam's signature
        """Always the size asked for."""
        return _sides(self.size, "RandomResizedCrop")

    def __call__(self, pixels: Pixels, draw: Draw) -> Pixels:
        """Cut and resize."""
        top, left, height, width = self._box(pixels.shape[0], pixels.shape[1], draw)
        return resize(
            pixels[top : top + height, left : left + width], *_sides(self.size, "RandomResizedCrop"), quick=True
        )

    def _box(self, height: int, width: int, draw: Draw) -> tuple[int, int, int, int]:
        log = (math.log(self.ratio[0]), math.log(self.ratio[1]))
        for _ in range(_TRIES):
            area = height * width * draw.uniform(*self.scale)
            ratio = math.exp(draw.uniform(*log))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return draw.integer(height - h + 1), draw.integer(width - w + 1), h, w
        w = min(width, max(1, round(height * self.ratio[1])))
        h = min(height, max(1, round(width / self.ratio[0])))
        return (height - h) // 2, (width - w) // 2, h, w


@dataclass(frozen=True)
class Resize:
    """The whole image at another size: an int for the shorter side, or (height, width)."""

    size: int | tuple[int, int]
    random = False

    def __post_init__(self) -> None:
        _sides(self.size, "Resize")

    def output(self, height: int | None, width: int | None) -> tuple[int, int] | None:
        """The size of the result."""
        if isinstance(self.size, tuple | list):
            return _sides(self.size, "Resize")
        if height is None or width is None:
            return None
        other = max(1, int(self.size * max(height, width) / min(height, width)))
        return (self.size, other) if height <= width else (other, self.size)

    def __call__(self, pixels: Pixels, draw: Draw) -> Pixels:  # noqa: ARG002 - nothing is drawn
        """Resize."""
        size = self.output(pixels.shape[0], pixels.shape[1])
        assert size is not None
        return resize(pixels, *size, quick=True)


@dataclass(frozen=True)
class CenterCrop:
    """The middle, padded with zeros where the image is smaller."""

    size: int | tuple[int, int]
    random = False

    def __post_init__(self) -> None:
        _sides(self.size, "CenterCrop")

    def output(self, height: int | None, width: int | None) -> tuple[int, int]:  # noqa: ARG002 - the seam's signature
        """Always the size asked for."""
        return _sides(self.size, "CenterCrop")

    def __call__(self, pixels: Pixels, draw: Draw) -> Pixels:  # noqa: ARG002 - nothing is drawn
        """Cut."""
        rows, columns = _sides(self.size, "CenterCrop")
        height, width = pixels.shape[:2]
        above, before = max(0, rows - height), max(0, columns - width)
        if above or before:
            pixels = np.pad(pixels, ((above // 2, above - above // 2), (before // 2, before - before // 2), (0, 0)))
        top, left = round((pixels.shape[0] - rows) / 2), round((pixels.shape[1] - columns) / 2)
        return pixels[top : top + rows, left : left + columns]


@dataclass(frozen=True)
class HorizontalFlip:
    """Left and right exchanged with probability `p`."""

    p: float = 0.5
    random = True

    def __post_init__(self) -> None:
        if not isinstance(self.p, int | float) or not 0 <= self.p <= 1:
            raise UsageError(f"HorizontalFlip({self.p!r}): a probability lies in 0..1")

    def __call__(self, pixels: Pixels, draw: Draw) -> Pixels:
        """Flip or not."""
        if draw.uniform() >= self.p:
            return pixels
        if (cv2 := opencv()) is not None:
            flipped: Pixels = cv2.flip(pixels, 1)
            return flipped.reshape(pixels.shape)
        # As pixels of 3 bytes the reversed copy takes 100 us for 224x224, byte by byte 240, OpenCV's 15.
        whole = np.ascontiguousarray(pixels).view(f"V{pixels.shape[2] * pixels.itemsize}")
        return np.ascontiguousarray(whole[:, ::-1]).view(pixels.dtype)
