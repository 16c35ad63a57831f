"""Values of any length, batched: one tensor of all, and where each sample's begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

__all__ = ["Ragged"]

_SMALL = 1 << 16
"""Bytes that travel between processes by value: a descriptor for shared memory costs more."""


@dataclass
class Ragged:
    """The values of a batch: those of sample i are `values[offsets[i]:offsets[i + 1]]`."""

    values: torch.Tensor
    """(N,) of any dtype."""
    offsets: torch.Tensor
    """int64 (n + 1,)."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, place: int) -> torch.Tensor:
        if not -len(self) <= place < len(self):
            raise IndexError(f"there is no sample {place} in a batch of {len(self)}")
        start, stop = self.offsets[place % len(self) :][:2].tolist()
        return self.values[start:stop]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.to_list())

    def __reduce__(self) -> tuple[Any, ...]:
        here = self.values.device.type == self.offsets.device.type == "cpu" and not self.values.requires_grad
        if self.values.nbytes > _SMALL or not here:
            return Ragged, (self.values, self.offsets)
        return Ragged.of, (self.values.numpy(), self.offsets.numpy())

    def to_list(self) -> list[torch.Tensor]:
        """A tensor for each sample."""
        return list(torch.split(self.values, self.offsets.diff().tolist()))

    def part(self, start: int, stop: int) -> Ragged:
        """The samples from one place on to another, around the same memory."""
        offsets = self.offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return Ragged(self.values[first:last], offsets - first)

    def to(self, *args: Any, **options: Any) -> Ragged:
        """On another device, as `Tensor.to`."""
        return Ragged(self.values.to(*args, **options), self.offsets.to(*args, **options))

    def pin_memory(self) -> Ragged:
        """In pinned memory; DataLoader calls it."""
        return Ragged(self.values.pin_memory(), self.offsets.pin_memory())

    @classmethod
    def of(cls, values: npt.NDArray[Any], offsets: npt.NDArray[np.int64]) -> Ragged:
        """From arrays of its own memory."""
        return cls(torch.from_numpy(values), torch.from_numpy(offsets))
