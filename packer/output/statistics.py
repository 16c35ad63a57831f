"""Statistics of a store, from integer sums in unit order, so that they are the same for any number of workers. Pure."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from packer.rows import UnitRows

__all__ = ["QUANTILES", "Statistics"]

QUANTILES = (0, 5, 25, 50, 75, 95, 100)
"""Percent of the samples, of which sizes are told."""
_SIDES = 1 << 16
"""Largest side, and largest number of classes without names, that is counted."""


class Statistics:
    """Sums over units: channel values, class counts, image sizes."""

    def __init__(self, channels: int, bits: int, classes: int) -> None:
        """Begin with nothing; `classes` is their number where that is known."""
        self._top = 2**bits - 1
        self._moments = [0] * (2 * channels)
        self._pixels = 0
        self._classes = np.zeros(classes, np.int64)
        self._countable = True
        self._heights = np.zeros(_SIDES, np.int64)
        self._widths = np.zeros(_SIDES, np.int64)
        self.max_height = 0
        self.max_width = 0
        self.same_size = True
        self._first: tuple[int, int] | None = None

    def derived(self, rows: UnitRows) -> UnitRows:
        """The unit's rows; nothing follows from those before."""
        return rows

    def add(self, rows: UnitRows) -> None:
        """Take the next unit."""
        heights, widths = rows.columns["height"], rows.columns["width"]
        if not len(heights):
            return
        if "label" in rows.columns:
            self._count(rows.columns["label"])
        moments = np.ascontiguousarray(rows.columns["moments"]).view("<u8")
        # Python's integers: the squares of a large set are over 64 bits.
        self._moments = [s + sum(column) for s, column in zip(self._moments, moments.T.tolist(), strict=True)]
        self._pixels += int((heights.astype(np.int64) * widths).sum())
        self._heights += np.bincount(heights.clip(max=_SIDES - 1), minlength=_SIDES)
        self._widths += np.bincount(widths.clip(max=_SIDES - 1), minlength=_SIDES)
        self.max_height = max(self.max_height, int(heights.max()))
        self.max_width = max(self.max_width, int(widths.max()))
        self._first = self._first or (int(heights[0]), int(widths[0]))
        self.same_size &= bool((heights == self._first[0]).all() and (widths == self._first[1]).all())

    def _count(self, labels: npt.NDArray[np.int32]) -> None:
        """Count labels; numbers that are too large to be classes end the counting."""
        self._countable &= int(labels.min()) >= 0 and int(labels.max()) < _SIDES
        if self._countable:
            counts = np.bincount(labels, minlength=len(self._classes))
            self._classes = np.pad(self._classes, (0, len(counts) - len(self._classes))) + counts

    def to_json(self) -> dict[str, Any]:
        """The manifest's `statistics`; mean and deviation are of pixel values divided by the largest one."""
        pixels, channels = self._pixels, len(self._moments) // 2
        sums, squares = self._moments[:channels], self._moments[channels:]
        means = [s / pixels for s in sums] if pixels else []
        deviations = [sqrt(max(0.0, q / pixels - m * m)) for q, m in zip(squares, means, strict=False)]
        found: dict[str, Any] = {
            "image": {
                "pixels": pixels,
                "sums": sums,
                "squares": squares,
                "mean": [round(m / self._top, 8) for m in means],
                "std": [round(d / self._top, 8) for d in deviations],
                "height": _quantiles(self._heights),
                "width": _quantiles(self._widths),
            }
        }
        if len(self._classes) and self._countable:
            found["class_counts"] = self._classes.tolist()
        return found


def _quantiles(counts: npt.NDArray[np.int64]) -> dict[str, int]:
    """Values below which so many percent lie, by counting."""
    ends = np.cumsum(counts)
    places = [min(int(ends[-1]) - 1, int(ends[-1]) * q // 100) for q in QUANTILES]
    return {str(q): int(np.searchsorted(ends, place, "right")) for q, place in zip(QUANTILES, places, strict=True)}
