"""The trainer's side of a ring: slots of worker processes are mapped here, and freed when the last array has died.

See `ring.py` for the whole, and for what makes it safe.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packer_reader.errors import StoreError
from packer_reader.locks import ThreadLock

__all__ = ["HEADER", "SERIAL", "Address", "close", "drop", "drop_dead", "memory_of"]

Array = npt.NDArray[Any]

HEADER = 64
"""Bytes before a slot's data; the first eight are the serial that was freed last."""
SERIAL = struct.Struct("<q")


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


_LOCK = ThreadLock()
_RINGS: dict[bytes, tuple[int, dict[int, _Mapped]]] = {}
"""By token: the ring's process, and its slots by number."""


def memory_of(address: Address) -> Array:
    """The memory of a batch, uint8 (capacity,); its slot is free again once nothing holds that any more.

    Raises:
        StoreError: the slot cannot be mapped, or the batch was here before and has been freed.
    """
    with _LOCK:
        return np.asarray(_leased(address))


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
    for _, slots in _RINGS.values():
        for mapped in slots.values():
            mapped.let_go()  # or a worker would keep the memory of another loader's batches
    _RINGS.clear()


os.register_at_fork(after_in_child=_forget_inherited)
