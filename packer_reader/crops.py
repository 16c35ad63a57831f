"""Geometry at decode time: which part of an image training sees, at which size.

Every random number comes from (seed, epoch, sample id), so a sample gets the same crop whatever the number of workers,
and another one each epoch.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from packer_reader.errors import UsageError
from packer_reader.opencv import opencv
from packer_reader.permutation import key
from packer_reader.resize import nearest, resize

__all__ = ["CenterCrop", "Crop", "Cut", "Draw", "HorizontalFlip", "RandomResizedCrop", "Resize", "flip"]

Pixels = npt.NDArray[Any]

_AUGMENT = 32
"""First part of the hash keys of augmentation; the orders have 1 to 16."""
_TRIES = 10
_BLOCK = 8
"""Pixels of a side of libjpeg's blocks; smaller pictures are decoded in full."""


class Draw:
    """Random numbers of one view of a sample in one epoch."""

    def __init__(self, seed: int, epoch: int, sample: int, view: int = 0) -> None:
        """Begin at the first number."""
        self._begun = key(_AUGMENT, seed, epoch, sample, *((view,) if view else ()))
        self._drawn = 0

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """The next number, `low` included, `high` not."""
        self._drawn += 1
        return low + (high - low) * (key(self._drawn, begun=self._begun) * 2.0**-64)

    def integer(self, stop: int) -> int:
        """The next whole number in `0..stop-1`."""
        return min(stop - 1, int(self.uniform(0, stop)))


@dataclass(frozen=True, slots=True)
class Cut:
    """A rectangle of an image and the size that it gets: one for all spatial fields of a sample.

    It may reach outside of the image, where everything is zero.
    """

    top: int
    """All in pixels of the stored image."""
    left: int
    height: int
    width: int
    size: tuple[int, int]
    """Height and width of the result."""

    @property
    def divisor(self) -> int:
        """The largest of 8, 4 and 2 at which a smaller decode still has all pixels of the result; else 1."""
        rows, columns = self.size
        if self.height < 2 * rows or self.width < 2 * columns or min(self.height, self.width) < _BLOCK:
            return 1
        return max(d for d in (2, 4, 8) if self.height >= d * rows and self.width >= d * columns)

    def aligned(self) -> Cut:
        """The same with its corner where a pixel of the smaller decode begins, at most 7 pixels away."""
        divisor = self.divisor
        if divisor == 1:
            return self
        return replace(self, top=self.top - self.top % divisor, left=self.left - self.left % divisor)

    def of(self, pixels: Pixels) -> Pixels:
        """Cut a whole image, (h, w, c), and resize the part."""
        return self.resized(self.inside(pixels), pixels.shape[:2])

    def inside(self, pixels: Pixels) -> Pixels:
        """What of a whole image, (h, w, c), lies in the rectangle: a view."""
        return pixels[max(0, self.top) : self.top + self.height, max(0, self.left) : self.left + self.width]

    def resized(
        self,
        part: Pixels,
        whole: tuple[int, ...],
        extent: tuple[float, float] | None = None,
        out: Pixels | None = None,
        *,
        fill: int | None = None,
    ) -> Pixels:
        """What of the rectangle lies inside of the image to the result.

        Args:
            part: (h, w, c), decoded in full or at a fraction.
            whole: height and width of the image, in full pixels.
            extent: rows and columns of `part` that the rectangle covers; see `resize`.
            out: (*size, c), filled and returned when given.
            fill: given for labels, which are never blended: what stands outside of the image.
        """
        above, before = max(0, -self.top), max(0, -self.left)
        below = max(0, self.top + self.height - whole[0])
        behind = max(0, self.left + self.width - whole[1])
        if above or before or below or behind:
            part = np.pad(part, ((above, below), (before, behind), (0, 0)), constant_values=fill or 0)
        if fill is not None:
            labels = nearest(part, *self.size)
            if out is None:
                return labels
            np.copyto(out, labels)
            return out
        return resize(part, *self.size, extent=extent, quick=True, out=out)


class Crop(Protocol):
    """What `crop=` takes."""

    random: bool
    """Whether it draws."""

    def output(self, height: int | None, width: int | None) -> tuple[int, int] | None:
        """Size of the result for images of this size; None when results differ in size."""

    def cut(self, height: int, width: int, draw: Draw) -> Cut:
        """The part to see of an image of this size."""


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
    """Whether this is (low, high), both over 0 and of a size that means something."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        return False
    numbers = [n for n in pair if isinstance(n, int | float)]
    return len(numbers) == 2 and 1e-6 <= numbers[0] <= numbers[1] <= 1e6


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
            raise UsageError(f"{self!r}: scale and ratio must be (low, high), from 1e-6 to 1e6")

    def output(self, height: int | None, width: int | None) -> tuple[int, int]:  # noqa: ARG002 - the seam's signature
        """Always the size asked for."""
        return _sides(self.size, "RandomResizedCrop")

    def cut(self, height: int, width: int, draw: Draw) -> Cut:
        """Draw a part."""
        return Cut(*self._box(height, width, draw), _sides(self.size, "RandomResizedCrop")).aligned()

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

    def cut(self, height: int, width: int, draw: Draw) -> Cut:  # noqa: ARG002 - nothing is drawn
        """All of it."""
        size = self.output(height, width)
        assert size is not None
        return Cut(0, 0, height, width, size)


@dataclass(frozen=True)
class CenterCrop:
    """The middle, padded with zeros where the image is smaller; or, with `ratio`, of any size and resized."""

    size: int | tuple[int, int]
    """Height and width of the result."""
    ratio: float | None = None
    """Share of the largest centred rectangle of the result's shape: 0.875 sees what `Resize(256)`, `CenterCrop(224)`
    see. None takes the pixels as they are."""
    random = False

    def __post_init__(self) -> None:
        _sides(self.size, "CenterCrop")
        if self.ratio is not None and (not isinstance(self.ratio, int | float) or not 0 < self.ratio <= 1):
            raise UsageError(f"{self!r}: the ratio must be over 0 and at most 1")

    def output(self, height: int | None, width: int | None) -> tuple[int, int]:  # noqa: ARG002 - the seam's signature
        """Always the size asked for."""
        return _sides(self.size, "CenterCrop")

    def cut(self, height: int, width: int, draw: Draw) -> Cut:  # noqa: ARG002 - nothing is drawn
        """The middle; odd margins are rounded as torchvision's `CenterCrop` rounds them."""
        size = rows, columns = _sides(self.size, "CenterCrop")
        if self.ratio is not None:
            scale = self.ratio * min(height / rows, width / columns)
            rows, columns = max(1, round(rows * scale)), max(1, round(columns * scale))
        return Cut(_margin(height, rows), _margin(width, columns), rows, columns, size).aligned()


def _margin(whole: int, part: int) -> int:
    """Where a centred part begins; below 0 where it is the larger one."""
    return round((whole - part) / 2) if part <= whole else -((part - whole) // 2)


@dataclass(frozen=True)
class HorizontalFlip:
    """Left and right exchanged with probability `p`."""

    p: float = 0.5
    random = True

    def __post_init__(self) -> None:
        if not isinstance(self.p, int | float) or not 0 <= self.p <= 1:
            raise UsageError(f"HorizontalFlip({self.p!r}): a probability lies in 0..1")

    def drawn(self, draw: Draw) -> bool:
        """Whether to flip this one."""
        return draw.uniform() < self.p


def flip(pixels: Pixels) -> Pixels:
    """Exchange left and right in place, (h, w, c), contiguous; returned as well."""
    if pixels.shape[2] == 3 and (cv2 := opencv()) is not None:
        cv2.flip(pixels, 1, dst=pixels)
        return pixels
    # As pixels of 3 bytes the reversed copy takes 100 us for 224x224, byte by byte 240, OpenCV's 15.
    whole = pixels.view(f"V{pixels.shape[2] * pixels.itemsize}")
    whole[...] = np.ascontiguousarray(whole[:, ::-1])
    return pixels
