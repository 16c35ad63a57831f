"""Where the pixels of an image go. Pure: one geometry per sample, for all its spatial fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packer.recipe import Recipe

__all__ = ["Frame", "Geometry", "fit"]


@dataclass(frozen=True, slots=True)
class Frame:
    """What annotations may count in: the upright image, or the image as its file has it."""

    size: tuple[int, int]
    """Upright height and width."""
    turn: int = 1
    """EXIF orientation of the file, 1 to 8."""

    @property
    def raw(self) -> tuple[int, int]:
        """Height and width as the file has them."""
        return self.size if self.turn < 5 else self.size[::-1]


@dataclass(frozen=True, slots=True)
class Geometry:
    """Scale, then crop, then pad; each (height, width) or (top, left) in pixels."""

    scaled: tuple[int, int]
    """Size after scaling the whole image."""
    crop: tuple[int, int, int, int]
    """Top, left, height, width inside the scaled image."""
    pad: tuple[int, int]
    """Rows above and columns left of the image in the result."""
    size: tuple[int, int]
    """Size of the result."""

    @property
    def changes(self) -> bool:
        """Whether anything but a copy happens, for an image of the size this was made for."""
        return self.crop != (0, 0, *self.scaled) or self.size != self.scaled


def fit(height: int, width: int, recipe: Recipe) -> Geometry:
    """The geometry of an upright image of this size. No side ever becomes 0.

    Sides are rounded as torchvision's `Resize` and `CenterCrop` round them, so that a training pipeline that moves its
    transforms here sees the same pixels.
    """
    if recipe.resize is None:
        return _plain(height, width)
    if recipe.fit in {"shorter", "longer"}:
        return _by_one_side(height, width, recipe)
    assert recipe.target is not None
    rows, columns = recipe.target
    if recipe.fit == "stretch":
        if not recipe.upscale:
            rows, columns = min(rows, height), min(columns, width)
        return _plain(rows, columns)
    if recipe.fit == "crop":
        return _crop(height, width, (rows, columns), upscale=recipe.upscale)
    return _pad(height, width, (rows, columns), upscale=recipe.upscale)


def _plain(rows: int, columns: int) -> Geometry:
    return Geometry((rows, columns), (0, 0, rows, columns), (0, 0), (rows, columns))


def _by_one_side(height: int, width: int, recipe: Recipe) -> Geometry:
    assert recipe.resize is not None
    side = recipe.resize[0]
    short, long = sorted((height, width))
    base = short if recipe.fit == "shorter" else long
    if base == side or (base < side and not recipe.upscale):
        return _plain(height, width)
    other = max(1, int(side * (long if recipe.fit == "shorter" else short) / base))
    if (recipe.fit == "shorter") == (height <= width):
        return _plain(side, other)
    return _plain(other, side)


def _crop(height: int, width: int, target: tuple[int, int], *, upscale: bool) -> Geometry:
    rows, columns = target
    if rows * width >= columns * height:
        scaled = (rows, max(columns, int(rows * width / height)))
    else:
        scaled = (max(rows, int(columns * height / width)), columns)
    if not upscale and scaled[0] > height:
        scaled = (height, width)
    rows, columns = min(rows, scaled[0]), min(columns, scaled[1])
    top, left = round((scaled[0] - rows) / 2), round((scaled[1] - columns) / 2)
    return Geometry(scaled, (top, left, rows, columns), (0, 0), (rows, columns))


def _pad(height: int, width: int, target: tuple[int, int], *, upscale: bool) -> Geometry:
    rows, columns = target
    if rows * width <= columns * height:
        scaled = (rows, max(1, min(columns, round(rows * width / height))))
    else:
        scaled = (max(1, min(rows, round(columns * height / width))), columns)
    if not upscale and (scaled[0] > height or scaled[1] > width):
        scaled = (height, width)
    top, left = (rows - scaled[0]) // 2, (columns - scaled[1]) // 2
    return Geometry(scaled, (0, 0, *scaled), (top, left), target)
