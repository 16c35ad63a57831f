"""Lists of tensors between processes: as one piece of shared memory, since torch would send a descriptor for each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Packed", "packed"]


class Packed:
    """Tensors of one dtype and of any sizes, one behind the other in memory."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy them into shared memory; each keeps the order that its values have in memory."""
        self._permuted = tensors[0].ndim == 3
        """Images: (c, h, w) over memory of (h, w, c)."""
        arrays = [tensor.permute(1, 2, 0) if self._permuted else tensor for tensor in tensors]
        self._shapes = [tuple(array.shape) for array in arrays]
        sizes = [math.prod(shape) for shape in self._shapes]
        dtype = tensors[0].dtype
        kind: Any = torch.UntypedStorage
        storage = kind._new_shared(sum(sizes) * dtype.itemsize)
        self._data = torch.tensor([], dtype=dtype).set_(storage)
        place, data = 0, self._data.numpy()
        for array, size in zip(arrays, sizes, strict=True):
            data[place : place + size] = array.numpy().reshape(-1)
            place += size

    def list(self) -> list[torch.Tensor]:
        """The tensors, as views of the one memory."""
        pieces = torch.split(self._data, [math.prod(shape) for shape in self._shapes])
        found = [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]
        return [one.permute(2, 0, 1) for one in found] if self._permuted else found


def packed(values: Any) -> Any:
    """A list of tensors as `Packed`; anything else as it is."""
    if not isinstance(values, list) or not values or not all(type(one) is torch.Tensor for one in values):
        return values
    return Packed(values) if len({(one.dtype, one.ndim) for one in values}) == 1 else values
