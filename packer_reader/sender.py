"""How a batch gets from the process that reads it to the loop that trains on it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch.utils.data import get_worker_info

from packer_reader.errors import StoreError, UsageError
from packer_reader.locks import ThreadLock
from packer_reader.packed import packed
from packer_reader.ring import Ring, places_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from packer_reader.batch import BatchReader

__all__ = ["Sender", "Transport"]

Transport = Literal["ring", "plain"]


_MAKING = ThreadLock()


class Sender:
    """Fills batches in the slots of this process's ring."""

    def __init__(self, reader: BatchReader, transport: Transport, *, plain: bool) -> None:
        """Take the reader, and whether to send nothing at all (a transform needs the batch in the worker).

        Raises:
            UsageError: there is no such transport.
        """
        if transport not in get_args(Transport):
            raise UsageError(f"transport is {transport!r}, it must be 'ring' or 'plain'")
        large = any(len(shape) > 1 for _, _, shape in reader.arrays(1)) or bool(reader.listed())
        fits = reader.view.decode in {"torch", "bytes"} and large
        self._reader, self._used = reader, transport == "ring" and fits and not plain and Ring.works()
        self._ring: Ring | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ring": None}

    def _own_ring(self) -> Ring:
        with _MAKING:  # several threads may begin at once
            if self._ring is None or self._ring.process != os.getpid():
                self._ring = Ring()
            return self._ring

    def send(self, numbers: npt.NDArray[np.int64], epoch: int, more: Mapping[str, npt.NDArray[Any]]) -> Any:
        """Read a batch into a slot.

        Args:
            numbers: sample numbers, int64 (n,).
            epoch: what random crops are drawn for.
            more: arrays that belong to the batch as well.

        Returns:
            In a worker a handle, which turns into the batch in the trainer; there, the batch; None if it has to be read
            and sent in the plain way.

        Raises:
            StoreError: a sample is damaged.
        """
        if not self._used:
            return None
        ring = self._own_ring()
        wanted = [
            *self._reader.arrays(len(numbers)),
            *((name, value.dtype, value.shape) for name, value in more.items()),
        ]
        places, size = places_for(wanted)
        try:
            slot = ring.take(size)
        except OSError:
            return None  # no room for one more
        arrays = {place.name: place.array(slot.memory) for place in places}
        try:
            rest = self._reader.fill(numbers, epoch, arrays)
        except BaseException:
            ring.give_back(slot)
            raise
        for name, value in more.items():
            arrays[name][...] = value
        if get_worker_info() is not None:
            together = {name: packed(values) for name, values in rest.items()}
            return ring.handle(slot, places, together, self._reader.finish)
        handle = ring.handle(slot, places, rest, self._reader.finish)
        try:
            return handle.taken_over()
        except StoreError:
            return handle.open()  # no descriptor is left, and memory of its own needs none
