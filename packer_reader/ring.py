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
- Beyond `SLOTS` slots in use a batch gets one of its own, which is used once: nothing ever waits for the trainer.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer_reader.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["SLOTS", "Handle", "Place", "Ring", "Slot", "drop_dead", "places_for"]

Array = npt.NDArray[Any]

SLOTS = 16
"""Slots of one ring that are filled again and again."""
_HEADER = 64
"""Bytes before a slot's data; the first eight are the serial that was freed last."""
_SERIAL = struct.Struct("<q")
_ALIGN = 64


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

        Raises:
            OSError: there is no room.
        """
        self.number, self.capacity = number, capacity
        self.file = os.memfd_create("packer", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(self.file, 0, _HEADER + capacity)
            self._map = mmap.mmap(self.file, _HEADER + capacity)
        except BaseException:
            os.close(self.file)
            raise
        self.memory: Array = np.frombuffer(self._map, np.uint8)[_HEADER:]
        self.serial = 0
        """Of the batch that lies in it."""
        weakref.finalize(self, _close, self.file)

    @property
    def free(self) -> bool:
        """Whether the batch in it has been freed."""
        return bool(_SERIAL.unpack_from(self._map)[0] == self.serial)


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
        weakref.finalize(self, _drop, self._token)  # where it was read in the same process

    @staticmethod
    def works() -> bool:
        """Whether this system has what it takes."""
        return hasattr(os, "memfd_create") and os.path.exists("/proc/self/fd")  # noqa: PTH110 - once per process

    def take(self, size: int) -> Slot:
        """A slot of at least so many bytes that nobody uses.

        Raises:
            OSError: there is no room for another one.
        """
        self._once = [slot for slot in self._once if not slot.free]
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

    def _make(self, size: int) -> Slot:
        self._made += 1
        return Slot(self._made, size)

    def handle(
        self, slot: Slot, places: Sequence[Place], rest: Mapping[str, Any], finish: Callable[..., Any]
    ) -> Handle:
        """What travels for the batch in a slot, which is in use from now on.

        Args:
            slot: from `take`, filled.
            places: of its arrays.
            rest: what is not in the slot; pickled.
            finish: called in the trainer with the arrays by name and `rest`; its result is the batch.
        """
        slot.serial += 1
        numbers = tuple(other.number for other in self._slots)
        address = _Address(self._token, self.process, slot.file, slot.number, slot.serial, slot.capacity, numbers)
        return Handle(address, tuple(places), dict(rest), finish)


@dataclass(frozen=True, slots=True)
class _Address:
    """Which batch in which slot of which process."""

    token: bytes
    process: int
    file: int
    """Number of the slot's descriptor there."""
    number: int
    """Of the slot; a ring gives each only once."""
    serial: int
    capacity: int
    numbers: tuple[int, ...]
    """Slots that the ring fills again; all others are used once."""


class Handle:
    """A batch on its way: it turns into the batch where it is unpickled.

    For a `collate_fn` of the user's, which sees it in the worker, it can be read like the batch; it then travels as an
    ordinary one.
    """

    __slots__ = ("_address", "_batch", "_finish", "_places", "_rest")

    def __init__(
        self, address: _Address, places: tuple[Place, ...], rest: dict[str, Any], finish: Callable[..., Any]
    ) -> None:
        self._address, self._places, self._rest, self._finish = address, places, rest, finish
        self._batch: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._batch is not None:
            return type(self._batch), (dict(self._batch),)
        return _opened, (self._address, self._places, self._rest, self._finish)

    def open(self) -> Any:
        """The batch, in the process that filled it."""
        if self._batch is None:
            self._batch = _opened(self._address, self._places, self._rest, self._finish)
        return self._batch

    def __getitem__(self, name: str) -> Any:
        return self.open()[name]

    def __contains__(self, name: object) -> bool:
        return name in self.open()

    def __iter__(self) -> Iterator[str]:
        return iter(self.open())

    def __len__(self) -> int:
        return len(self.open())

    def keys(self) -> Any:
        """Of the batch."""
        return self.open().keys()

    def items(self) -> Any:
        """Of the batch."""
        return self.open().items()

    def values(self) -> Any:
        """Of the batch."""
        return self.open().values()


class _Mapped:
    """A slot in the trainer: its memory and its file."""

    def __init__(self, address: _Address) -> None:
        path = f"/proc/{address.process}/fd/{address.file}"
        try:
            self.file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(
                f"a batch of worker process {address.process} cannot be taken over ({error.strerror}): the worker has "
                "ended, or this system does not let one look; give transport='plain' to the StreamDataset"
            ) from None
        self._closing = weakref.finalize(self, _close, self.file)
        self._map = mmap.mmap(self.file, _HEADER + address.capacity)
        self.memory: Array = np.frombuffer(self._map, np.uint8)[_HEADER:]

    def keep(self, serial: int) -> None:
        """The worker may let go of the slot: this mapping keeps its memory, without a file."""
        os.pwrite(self.file, _SERIAL.pack(serial), 0)
        self._closing()
        self.file = -1


class _Lease:
    """The memory of one batch; what is made from it holds it, and its end frees the slot."""

    def __init__(self, mapped: _Mapped, serial: int) -> None:
        self._mapped = mapped
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (len(mapped.memory),),
            "data": (mapped.memory.ctypes.data, False),
        }
        weakref.finalize(self, _free, mapped, serial, os.getpid()).atexit = False


_LOCK = threading.RLock()  # a finalizer may run while this thread holds it
_RINGS: dict[bytes, tuple[int, dict[int, _Mapped]]] = {}
"""By token: the ring's process, and its slots by number."""


def _opened(address: _Address, places: tuple[Place, ...], rest: dict[str, Any], finish: Callable[..., Any]) -> Any:
    memory = np.asarray(_Lease(_mapped(address), address.serial))
    return finish({place.name: place.array(memory) for place in places}, rest)


def _mapped(address: _Address) -> _Mapped:
    if address.number not in address.numbers:
        mapped = _Mapped(address)
        mapped.keep(address.serial)
        return mapped
    with _LOCK:
        if address.token not in _RINGS:
            drop_dead()
            _RINGS[address.token] = (address.process, {})
        slots = _RINGS[address.token][1]
        if address.number not in slots:
            for gone in slots.keys() - set(address.numbers):
                del slots[gone]
            slots[address.number] = _Mapped(address)
        return slots[address.number]


def _free(mapped: _Mapped, serial: int, process: int) -> None:
    """The last array over a batch has died."""
    if os.getpid() == process and mapped.file >= 0:
        with suppress(OSError):
            os.pwrite(mapped.file, _SERIAL.pack(serial), 0)


def drop_dead() -> None:
    """Forget the mappings of processes that have ended; batches that are still held keep theirs."""
    with _LOCK:
        for token, (process, _) in list(_RINGS.items()):
            if not os.path.exists(f"/proc/{process}"):  # noqa: PTH110 - once per ring
                del _RINGS[token]


def _drop(token: bytes) -> None:
    with _LOCK:
        _RINGS.pop(token, None)


def _close(file: int) -> None:
    with suppress(OSError):
        os.close(file)


def _forget_inherited() -> None:
    global _LOCK  # noqa: PLW0603 - another thread of the parent may have held it
    _LOCK = threading.RLock()


os.register_at_fork(after_in_child=_forget_inherited)
