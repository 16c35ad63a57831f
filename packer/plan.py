"""The stored order, computed and never stored. Pure.

A key is a place in the order. The seed's permutation sends each key to a ref; runs of `unit` keys are what a worker
converts at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from packer_reader.permutation import key, scatter

__all__ = ["Plan"]

_PLAN = 16
"""First part of the hash key; 1 to 15 belong to the epoch order."""
_BLOCK = 16
"""Units whose refs are computed together."""


@dataclass(frozen=True)
class Plan:
    """One split's order.

    Example:
        >>> plan = Plan(count=5, seed=0, unit=2)
        >>> sorted(ref for unit in range(plan.units) for ref in plan.refs(unit).tolist())
        [0, 1, 2, 3, 4]
    """

    count: int
    """Refs of the split."""
    seed: int
    unit: int
    """Refs per unit; the last one may have fewer."""
    shuffle: bool = True

    @property
    def units(self) -> int:
        """Number of units."""
        return -(-self.count // self.unit)

    def keys(self, unit: int) -> npt.NDArray[np.int64]:
        """The unit's keys, rising; int64 (n,)."""
        return np.arange(unit * self.unit, min((unit + 1) * self.unit, self.count))

    def refs(self, unit: int) -> npt.NDArray[np.int64]:
        """Places, in the split's sorted list of refs, of the unit's keys; int64 (n,)."""
        keys = self.keys(unit)
        if not self.shuffle:
            return keys
        first = unit % _BLOCK * self.unit
        return _block(self, unit // _BLOCK)[first : first + len(keys)]

    def places(self, refs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The keys of refs, by their places in the split's sorted list; int64, of the same shape."""
        return scatter(refs, self.count, key(_PLAN, self.seed), inverse=True) if self.shuffle else refs


@lru_cache(maxsize=4)
def _block(plan: Plan, number: int) -> npt.NDArray[np.int64]:
    """Refs of `_BLOCK` units: computed together they cost a quarter."""
    first = number * _BLOCK * plan.unit
    keys = np.arange(first, min(first + _BLOCK * plan.unit, plan.count))
    return scatter(keys, plan.count, key(_PLAN, plan.seed))
