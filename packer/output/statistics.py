"""Statistics of a store, from integer sums in unit order, so that they are the same for any number of workers. Pure."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from packer.rows import UnitRows

__all__ = ["Statistics"]

_QUANTILES = (0, 5, 25, 50, 75, 95, 100)
_SIDES = 1 << 16


class Statistics:
    """Sums over units: channel values, class counts, image sizes."""

    def __init__(self, channels: int, classes: int) -> None:
        """Begin with nothing."""
        self._histogram = np.zeros((channels, 256), np.int64)
        self._classes = np.zeros(classes, np.int64)
        self._heights = np.zeros(_SIDES, np.int64)
        self._widths = np.zeros(_SIDES, np.int64)
        self.max_height = 0
        self.max_width = 0
        self.same_size = True
        self._first: tuple[int, int] | None = None

    def add(self, rows: UnitRows) -> None:
        """Take the next unit."""
        self._histogram += np.array(rows.meta["histogram"], np.int64)
        heights, widths = rows.columns["height"], rows.columns["width"]
        if "label" in rows.columns:
            self._classes += np.bincount(rows.columns["label"], minlength=len(self._classes))
        if not len(heights):
            return
        self._heights += np.bincount(heights.clip(max=_SIDES - 1), minlength=_SIDES)
        self._widths += np.bincount(widths.clip(max=_SIDES - 1), minlength=_SIDES)
        self.max_height = max(self.max_height, int(heights.max()))
        self.max_width = max(self.max_width, int(widths.max()))
        self._first = self._first or (int(heights[0]), int(widths[0]))
        self.same_size &= bool((heights == self._first[0]).all() and (widths == self._first[1]).all())

    def to_json(self) -> dict[str, Any]:
        """The manifest's `statistics`; mean and deviation are of pixel values divided by 255."""
        values = np.arange(256)
        pixels = int(self._histogram[0].sum())
        sums = [int((channel * values).sum()) for channel in self._histogram]
        squares = [int((channel * values * values).sum()) for channel in self._histogram]
        means = [s / pixels for s in sums] if pixels else []
        deviations = [sqrt(max(0.0, q / pixels - m * m)) for q, m in zip(squares, means, strict=False)]
        found: dict[str, Any] = {
            "image": {
                "pixels": pixels,
                "sums": sums,
                "squares": squares,
                "mean": [round(m / 255, 8) for m in means],
                "std": [round(d / 255, 8) for d in deviations],
                "height": _quantiles(self._heights),
                "width": _quantiles(self._widths),
            }
        }
        if len(self._classes):
            found["class_counts"] = self._classes.tolist()
        return found


def _quantiles(counts: npt.NDArray[np.int64]) -> dict[str, int]:
    """Values below which so many percent lie, by counting."""
    ends = np.cumsum(counts)
    places = [min(int(ends[-1]) - 1, int(ends[-1]) * q // 100) for q in _QUANTILES]
    return {str(q): int(np.searchsorted(ends, place, "right")) for q, place in zip(_QUANTILES, places, strict=True)}
