"""A batch on its way from a worker to the trainer; see `ring.py`."""

from __future__ import annotations

import copy
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer_reader.errors import StoreError
from packer_reader.lease import SERIAL, memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from packer_reader.lease import Address

__all__ = ["Handle", "Place"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one array of a batch lies in a slot."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Bytes from the beginning of the data."""

    def array(self, memory: Array) -> Array:
        """The array in a slot's data, uint8 (capacity,)."""
        size = int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        return memory[self.offset : self.offset + size].view(self.dtype).reshape(self.shape)


class Handle:
    """A batch on its way: it turns into the batch where it is unpickled.

    Code of the user's that sees it in the worker (a `collate_fn`, a data set around ours) can use it like the batch, a
    dict; it then travels as an ordinary one. Dropped on the way it frees its slot.
    """

    __slots__ = ("_address", "_batch", "_finish", "_places", "_rest", "_sent", "_slot")

    def __init__(
        self, address: Address, places: tuple[Place, ...], rest: dict[str, Any], finish: Callable[..., Any], slot: Any
    ) -> None:
        self._address, self._places, self._rest, self._finish = address, places, rest, finish
        self._slot = slot
        """Keeps the slot's file open until the handle has been pickled."""
        self._batch: Any = None
        self._sent = False

    def __reduce__(self) -> tuple[Any, ...]:
        if self._batch is not None:
            return type(self._batch), (dict(self._batch),)
        self._sent = True
        return _opened, (self._address, self._places, self._rest, self._finish)

    def __copy__(self) -> Any:
        return self.open().copy()

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self.open(), memo)

    def __del__(self) -> None:
        if not self._sent and os.getpid() == self._address.process:
            with suppress(OSError):
                os.pwrite(self._slot.file, SERIAL.pack(self._address.serial), 0)

    def taken_over(self) -> Any:
        """The batch around the slot's own memory, where the process that filled it also trains."""
        batch = _opened(self._address, self._places, self._rest, self._finish)
        self._sent = True
        return batch

    def open(self) -> Any:
        """The batch in memory of its own: the slot belongs to the trainer, who may have got it already.

        Raises:
            StoreError: it was sent away, and the slot has another one by now.
        """
        if self._batch is None:
            if self._slot.serial != self._address.serial:
                raise StoreError("this batch was sent away and is gone: copy what you keep in a worker")
            arrays = {place.name: place.array(self._slot.memory).copy() for place in self._places}
            self._batch = self._finish(arrays, self._rest)
        return self._batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.open(), name)

    def __getitem__(self, name: str) -> Any:
        return self.open()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.open()[name] = value

    def __delitem__(self, name: str) -> None:
        del self.open()[name]

    def __contains__(self, name: object) -> bool:
        return name in self.open()

    def __iter__(self) -> Iterator[str]:
        return iter(self.open())

    def __len__(self) -> int:
        return len(self.open())

    def __or__(self, other: Any) -> Any:
        return self.open() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.open()

    def keys(self) -> Any:
        """Of the batch: what `**batch` and `dict(batch)` look for."""
        return self.open().keys()


def _opened(address: Address, places: tuple[Place, ...], rest: dict[str, Any], finish: Callable[..., Any]) -> Any:
    memory = memory_of(address)
    return finish({place.name: place.array(memory) for place in places}, rest)
