"""The trainer's side of a ring: a handle arrives, its slot is mapped, and arrays are wrapped around it.

See `ring.py` for the whole, and for what makes it safe.
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
    from collections.abc import Callable, Iterator

__all__ = ["HEADER", "SERIAL", "Address", "Handle", "Place", "close", "drop", "drop_dead"]

Array = npt.NDArray[Any]

HEADER = 64
"""Bytes before a slot's data; the first eight are the serial that was freed last."""
SERIAL = struct.Struct("<q")


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


@dataclass(frozen=True, slots=True)
class Address:
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
        self, address: Address, places: tuple[Place, ...], rest: dict[str, Any], finish: Callable[..., Any]
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

    def __init__(self, address: Address) -> None:
        path = f"/proc/{address.process}/fd/{address.file}"
        try:
            self.file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(
                f"a batch of worker process {address.process} cannot be taken over ({error.strerror}): the worker has "
                "ended, or this system does not let one look; give transport='plain' to the StreamDataset"
            ) from None
        self._closing = weakref.finalize(self, close, self.file)
        self._map = mmap.mmap(self.file, HEADER + address.capacity)
        self.memory: Array = np.frombuffer(self._map, np.uint8)[HEADER:]

    def keep(self, serial: int) -> None:
        """The worker may let go of the slot: this mapping keeps its memory, without a file."""
        os.pwrite(self.file, SERIAL.pack(serial), 0)
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


def _opened(address: Address, places: tuple[Place, ...], rest: dict[str, Any], finish: Callable[..., Any]) -> Any:
    memory = np.asarray(_Lease(_mapped(address), address.serial))
    return finish({place.name: place.array(memory) for place in places}, rest)


def _mapped(address: Address) -> _Mapped:
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
            os.pwrite(mapped.file, SERIAL.pack(serial), 0)


def drop_dead() -> None:
    """Forget the mappings of processes that have ended; batches that are still held keep theirs."""
    with _LOCK:
        for token, (process, _) in list(_RINGS.items()):
            if not os.path.exists(f"/proc/{process}"):  # noqa: PTH110 - once per ring
                del _RINGS[token]


def drop(token: bytes) -> None:
    """Forget the mappings of a ring."""
    with _LOCK:
        _RINGS.pop(token, None)


def close(file: int) -> None:
    """Close a descriptor, if it is still open."""
    with suppress(OSError):
        os.close(file)


def _forget_inherited() -> None:
    global _LOCK  # noqa: PLW0603 - another thread of the parent may have held it
    _LOCK = threading.RLock()


os.register_at_fork(after_in_child=_forget_inherited)
