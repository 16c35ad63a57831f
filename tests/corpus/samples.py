"""One decoded sample, and what a case may say of its picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["PARAMETERS", "PICTURE", "Check", "Sample"]

Pixels = npt.NDArray[Any]


@dataclass(frozen=True)
class Sample:
    """A decoded sample: field name to value."""

    fields: Mapping[str, Any]
    suffixes: tuple[str, ...] = ()
    """Of the stored fields."""
    classes: tuple[str, ...] | None = None

    @property
    def picture(self) -> Pixels:
        """Its picture, or its array."""
        arrays = [value for name, value in self.fields.items() if isinstance(value, np.ndarray) and name != "mask"]
        return np.asarray(self.fields["image"] if "image" in self.fields else arrays[0])


Check = Callable[[Any, Mapping[str, Any], Sample], bool]
"""Whether a sample is what an entry of `samples` says under one key: (value, entry, sample)."""

PARAMETERS = frozenset({"name", "quad_tol", "mean_tol", "serial_tol"})
"""Keys of an entry that say which sample, or how exact another key is."""
_TOLERANCE = 12


def _shape(want: list[int], _: Mapping[str, Any], sample: Sample) -> bool:
    return list(sample.picture.shape) == want


def _dtype(want: str, _: Mapping[str, Any], sample: Sample) -> bool:
    return str(sample.picture.dtype) == want


def quadrants(pixels: Pixels) -> list[Pixels]:
    """Mean colour of the central half of each quadrant: top-left, top-right, bottom-left, bottom-right."""
    if pixels.ndim == 2:
        pixels = pixels[:, :, np.newaxis]
    middle_y, middle_x = pixels.shape[0] // 2, pixels.shape[1] // 2
    halves = [half for row in (pixels[:middle_y], pixels[middle_y:]) for half in (row[:, :middle_x], row[:, middle_x:])]
    return [_central(half).reshape(-1, pixels.shape[2]).mean(0) for half in halves]


def _central(pixels: Pixels) -> Pixels:
    y, x = pixels.shape[0] // 4, pixels.shape[1] // 4
    return pixels[y : pixels.shape[0] - y, x : pixels.shape[1] - x].astype(np.float64)


def _near(found: Pixels, want: Any, tolerance: float) -> bool:
    """A colour within a tolerance; one number is a gray picture's only channel."""
    wanted = np.atleast_1d(np.asarray(want, np.float64))
    return found.shape == wanted.shape and bool(np.abs(found - wanted).max() <= tolerance)


def _quad(want: list[Any], entry: Mapping[str, Any], sample: Sample) -> bool:
    tolerance = entry.get("quad_tol", _TOLERANCE)
    found = quadrants(sample.picture)
    return all(colour is None or _near(f, colour, tolerance) for f, colour in zip(found, want, strict=True))


def _quad_any(want: list[list[Any]], entry: Mapping[str, Any], sample: Sample) -> bool:
    return any(_quad(quad, entry, sample) for quad in want)


def _mean(want: Any, entry: Mapping[str, Any], sample: Sample) -> bool:
    pixels = sample.picture
    found = pixels.reshape(-1, pixels.shape[2]).mean(0, dtype=np.float64)
    return _near(found, want, entry.get("mean_tol", _TOLERANCE))


def _carries(pixels: Pixels, number: int, tolerance: int) -> bool:
    want = (number % 256, number // 256, 77)
    return pixels.shape[2:] == (3,) and bool(np.abs(pixels.astype(np.int64) - want).max() <= tolerance)


def _serial(want: int, entry: Mapping[str, Any], sample: Sample) -> bool:
    return _carries(sample.picture, want, entry.get("serial_tol", 0))


def _serial_corner(want: int, entry: Mapping[str, Any], sample: Sample) -> bool:
    return _carries(sample.picture[:16, :16], want, entry.get("serial_tol", 0))


def _exact(want: list[tuple[list[int], float]], _: Mapping[str, Any], sample: Sample) -> bool:
    return all(np.array_equal(np.atleast_1d(sample.picture[tuple(place)]), [value]) for place, value in want)


PICTURE: dict[str, Check] = {
    "shape": _shape,
    "dtype": _dtype,
    "quad": _quad,
    "quad_any": _quad_any,
    "mean": _mean,
    "serial": _serial,
    "serial_corner": _serial_corner,
    "exact": _exact,
}
