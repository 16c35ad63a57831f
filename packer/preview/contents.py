"""Which samples hold the same: hashes of contents beside their numbers, in arrays, so that millions fit. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Contents", "candidates"]

Ints = npt.NDArray[np.int64]

_SORTED = 20_000_000
"""Samples that are considered: sorting them takes 1 GB of memory."""
_HASH = np.dtype([("low", "<u8"), ("high", "<u8")])


def candidates(sizes: npt.NDArray[Any], crcs: npt.NDArray[Any], seed: int, most: int = _SORTED) -> tuple[Ints, int]:
    """Samples whose content another one may have: those of one size, and of one CRC where both have it.

    Of more than `most` samples those of some sizes are considered, with all that have these sizes; where one size has
    too many by itself, an even draw of them.

    Args:
        sizes: bytes of each file, (n,); 0 where that is not known, which counts as a size.
        crcs: CRC-32 of each content, (n,); negative where that is not known.
        seed: of the draw.
        most: samples.

    Returns:
        Their numbers, those that may be equal side by side, and how many samples were considered.
    """
    share, kept = -(-len(sizes) // most), list[Ints]()
    for start in range(0, len(sizes), most):
        mixed = sizes[start : start + most].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        kept.append(start + np.flatnonzero((mixed >> np.uint64(40)) % np.uint64(share) == 0))
    numbers = np.concatenate([np.zeros(0, np.int64), *kept])
    if len(numbers) > 2 * most or (not len(numbers) and len(sizes)):
        numbers = np.sort(np.random.default_rng(seed).choice(len(sizes), most, replace=False))
    considered = len(numbers)
    if considered < 2:
        return np.zeros(0, np.int64), considered
    size, crc = sizes[numbers], np.maximum(crcs[numbers], -1)
    order = np.lexsort((crc, size))
    numbers, size, crc = numbers[order], size[order], crc[order]
    new_size = np.concatenate([[True], size[1:] != size[:-1]])
    new_pair = new_size | np.concatenate([[True], crc[1:] != crc[:-1]])
    # Within a size the unknown ones stand first; where there is one, any other of its size may be equal to it.
    unknown = (crc[new_size] < 0)[np.cumsum(new_size) - 1]
    starts = np.where(unknown, new_size, new_pair)
    alone = starts & np.concatenate([starts[1:], [True]])
    return numbers[~alone].astype(np.int64), considered


class Contents:
    """What is known of the contents of some samples."""

    def __init__(self, numbers: Ints) -> None:
        """Begin with nothing known.

        Args:
            numbers: of the samples that may be noted, in any order.
        """
        self._numbers = np.unique(numbers)
        self._hashes = np.zeros(len(self._numbers), _HASH)
        self._labels = np.full(len(self._numbers), -1, np.int64)
        self._known = np.zeros(len(self._numbers), np.bool_)

    def note(self, number: int, digest: bytes, label: int) -> None:
        """A sample holds content of this hash, 16 bytes, and has this label."""
        place = int(np.searchsorted(self._numbers, number))
        self._hashes[place] = np.frombuffer(digest, _HASH)[0]
        self._labels[place], self._known[place] = label, True

    def known(self, numbers: Ints) -> npt.NDArray[np.bool_]:
        """Which of some samples were noted, bool (n,)."""
        found: npt.NDArray[np.bool_] = self._known[np.searchsorted(self._numbers, numbers)]
        return found

    def repeated(self) -> Iterator[tuple[Ints, Ints]]:
        """Numbers and labels of samples that hold the same, content by content, in the order of their first one."""
        here = np.flatnonzero(self._known)
        order = here[np.lexsort((here, self._hashes["low"][here], self._hashes["high"][here]))]
        hashes = self._hashes[order]
        starts = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]])) if len(order) else order
        ends = np.concatenate([starts[1:], [len(order)]]).astype(np.int64)
        several = np.flatnonzero(ends - starts > 1)
        for run in several[np.argsort(order[starts[several]])].tolist():
            members = order[starts[run] : ends[run]]
            yield self._numbers[members], self._labels[members]
