"""The trainer's side of a ring: a handle arrives, its slot is mapped, and arrays are wrapped around it.

See `ring.py` for the whole, and for what makes it safe.
"""

from __future__ import annotations

import copy
import errno
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
    identity: tuple[int, int]
    """Device and inode of the slot's file: a descriptor's number may mean another file by the time it is opened."""
    numbers: tuple[int, ...]
    """Slots that the ring fills again; all others are used once."""


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


class _Mapped:
    """A slot in the trainer: its memory and its file."""

    def __init__(self, address: Address) -> None:
        self.file = _slot_file(address)
        self._closing = weakref.finalize(self, close, self.file)
        try:
            self._map = mmap.mmap(self.file, HEADER + address.capacity)
        except OSError as error:
            self._closing()
            raise _refused(address, error) from None
        self.memory: Array = np.frombuffer(self._map, np.uint8)[HEADER:]
        self._lease: weakref.ref[_Lease] | None = None

    def lease(self, address: Address) -> _Lease:
        """The memory of one batch; the same one again while it is held.

        Raises:
            StoreError: the batch was here before and has been freed, so its memory may hold another one.
        """
        held = self._lease() if self._lease is not None else None
        if held is not None and held.serial == address.serial:
            return held
        if SERIAL.unpack_from(self._map)[0] == address.serial:
            raise StoreError(
                "a batch was sent twice, and the first copy has been dropped: send batches once, or give "
                "transport='plain' to the StreamDataset"
            )
        lease = _Lease(self, address.serial)
        self._lease = weakref.ref(lease)
        return lease

    def let_go(self) -> None:
        """Close the file: the mapping keeps the memory, and nothing is marked any more."""
        self._closing()
        self.file = -1


def _slot_file(address: Address) -> int:
    """A descriptor of the slot, and of nothing else: what is opened here is written to.

    Raises:
        StoreError: it is gone, or the system does not let one look.
    """
    try:
        file = os.open(f"/proc/{address.process}/fd/{address.file}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise _refused(address, error) from None
    found = os.fstat(file)
    if (found.st_dev, found.st_ino) != address.identity:
        os.close(file)
        raise _refused(address, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
    return file


def _refused(address: Address, error: OSError) -> StoreError:
    if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
        return StoreError(f"no more batches can be held ({error.strerror}): hold fewer, or raise `ulimit -n`")
    return StoreError(
        f"a batch of worker process {address.process} cannot be taken over ({error.strerror}): the worker has ended, "
        "or this system does not let one look; give transport='plain' to the StreamDataset"
    )


class _Lease:
    """The memory of one batch; what is made from it holds it, and its end frees the slot."""

    def __init__(self, mapped: _Mapped, serial: int) -> None:
        self._mapped, self.serial = mapped, serial
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
    with _LOCK:
        memory = np.asarray(_leased(address))
    return finish({place.name: place.array(memory) for place in places}, rest)


def _leased(address: Address) -> _Lease:
    if address.number not in address.numbers:
        mapped = _Mapped(address)
        lease = mapped.lease(address)
        os.pwrite(mapped.file, SERIAL.pack(address.serial), 0)  # the worker may let go of it
        mapped.let_go()
        return lease
    if address.token not in _RINGS:
        drop_dead()
        _RINGS[address.token] = (address.process, {})
    slots = _RINGS[address.token][1]
    if address.number not in slots:
        for gone in slots.keys() - set(address.numbers):
            del slots[gone]
        slots[address.number] = _Mapped(address)
    return slots[address.number].lease(address)


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
    for _, slots in _RINGS.values():
        for mapped in slots.values():
            mapped.let_go()  # or a worker would keep the memory of another loader's batches
    _RINGS.clear()


os.register_at_fork(after_in_child=_forget_inherited)
