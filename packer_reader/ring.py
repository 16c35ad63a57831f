"""A ring of reused shared memory: batches are filled in place by a worker and handed to the trainer without a copy.

A batch lives in a *slot*, an anonymous file (memfd) that both processes map. From the worker travels a small `Handle`;
unpickling it in the trainer maps the slot, once, and wraps arrays around it. When the last of them has died, a mark is
written into the slot's header, and the worker may fill the slot again. Fresh memory for each batch costs ten times as
much: its page faults.

What makes it safe:

- A slot's header holds the serial number of the batch that was freed last. The worker fills it again only when that is
  the serial that it issued. The mark is written by a system call, so that it cannot overtake the last read.
- The finalizer that frees a batch knows the process that made it and does nothing in another one: a forked child that
  drops its copy would otherwise free its parent's slot.
- Mappings are kept under a ring's random token and under a lock (pin_memory reads in a thread), and dropped when the
  ring's process is gone.
- A handle is a plain object: a mapping, sequence or tensor would be copied by DataLoader's `default_convert`.
- A descriptor is opened by its number and compared with the slot's inode before anything is mapped or written; slots
  outlive their ring until their batches are freed; a handle that is dropped on the way frees its slot; one that is
  sent twice shares its memory, or is refused when that was freed.
- Beyond `SLOTS` slots in use a batch gets one of its own, which is used once: nothing ever waits for the trainer.

What it cannot do: a child forked in the middle of an epoch sees a batch change once its parent has dropped it (copy
what it is to keep), and `share_memory_()` on a tensor moves it away from numpy views of it.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer_reader.handle import Handle, Place
from packer_reader.lease import HEADER, SERIAL, Address, close, drop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["SLOTS", "Ring", "Slot", "places_for"]

Array = npt.NDArray[Any]

SLOTS = 16
"""Slots of one ring that are filled again and again."""
_ALIGN = 64


def places_for(arrays: Sequence[tuple[str, Any, tuple[int, ...]]]) -> tuple[list[Place], int]:
    """Lay arrays out one after the other, aligned; (name, dtype, shape) each.

    Returns:
        Their places, and bytes in all.
    """
    places, offset = [], 0
    for name, dtype, shape in arrays:
        places.append(Place(name, np.dtype(dtype).str, shape, offset))
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        offset += size + -size % _ALIGN
    return places, offset


class Slot:
    """One piece of shared memory."""

    def __init__(self, number: int, capacity: int) -> None:
        """Make it; its pages are there from now on, so that a full memory is an error here and no crash later.

        Small pages: huge ones (`MADV_COLLAPSE`, Linux 6.1) take half as long again to make, and neither decoding into
        them nor copying to them got faster (0.97 to 0.99 of small ones, alternating, on an EPYC).

        Raises:
            OSError: there is no room.
        """
        self.number, self.capacity = number, capacity
        self.file = os.memfd_create("packer", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(self.file, 0, HEADER + capacity)
            self._map = mmap.mmap(self.file, HEADER + capacity)
        except BaseException:
            os.close(self.file)
            raise
        self.memory: Array = np.frombuffer(self._map, np.uint8)[HEADER:]
        found = os.fstat(self.file)
        self.identity = found.st_dev, found.st_ino
        self.serial = 0
        """Of the batch that lies in it."""
        weakref.finalize(self, close, self.file)

    @property
    def free(self) -> bool:
        """Whether the batch in it has been freed."""
        return bool(SERIAL.unpack_from(self._map)[0] == self.serial)


class Ring:
    """The slots of one process; made and used by that process alone."""

    def __init__(self) -> None:
        """Begin without a slot."""
        self.process = os.getpid()
        self._token = os.urandom(16)
        self._slots: list[Slot] = []
        """The one used last stands last."""
        self._once: list[Slot] = []
        self._made = 0
        self._lock = threading.Lock()
        _sweep()
        weakref.finalize(self, _leave, self._token, self._slots, self._once)

    @staticmethod
    def works() -> bool:
        """Whether this system has what it takes."""
        return hasattr(os, "memfd_create") and os.path.exists("/proc/self/fd")  # noqa: PTH110 - once per process

    def take(self, size: int) -> Slot:
        """A slot of at least so many bytes that nobody uses; it is in use from now on.

        Raises:
            OSError: there is no room for another one.
        """
        with self._lock:  # several threads may read one data set
            slot = self._free_slot(size)
            slot.serial += 1
            return slot

    def _free_slot(self, size: int) -> Slot:
        self._once[:] = [slot for slot in self._once if not slot.free]
        for place in range(len(self._slots) - 1, -1, -1):
            if self._slots[place].free:
                slot = self._slots.pop(place)
                if slot.capacity < size:
                    slot = self._make(size)
                self._slots.append(slot)
                return slot
        slot = self._make(size)
        (self._slots if len(self._slots) < SLOTS else self._once).append(slot)
        return slot

    @staticmethod
    def give_back(slot: Slot) -> None:
        """A slot was not filled after all."""
        os.pwrite(slot.file, SERIAL.pack(slot.serial), 0)

    def _make(self, size: int) -> Slot:
        self._made += 1
        return Slot(self._made, size)

    def handle(
        self, slot: Slot, places: Sequence[Place], rest: Mapping[str, Any], finish: Callable[..., Any]
    ) -> Handle:
        """What travels for the batch in a slot.

        Args:
            slot: from `take`, filled.
            places: of its arrays.
            rest: what is not in the slot; pickled.
            finish: called in the trainer with the arrays by name and `rest`; its result is the batch.
        """
        with self._lock:
            numbers = tuple(other.number for other in self._slots)
        address = Address(
            self._token, self.process, slot.file, slot.number, slot.serial, slot.capacity, slot.identity, numbers
        )
        return Handle(address, tuple(places), dict(rest), finish, slot)


_LEFT: list[Slot] = []
"""Slots of rings that are gone whose batches are not freed yet, or still on their way."""


def _sweep() -> None:
    _LEFT[:] = [slot for slot in _LEFT if not slot.free]


def _leave(token: bytes, slots: list[Slot], once: list[Slot]) -> None:
    """A ring has died: its slots live as long as their batches."""
    drop(token)
    _LEFT.extend([*slots, *once])
    _sweep()
