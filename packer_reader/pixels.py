"""Where the pixels of an image field come from: the store's bytes, decoded when they are wanted, or a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from packer_reader.decode import Part, decode_image, decode_parts
from packer_reader.errors import DamageError
from packer_reader.format.crc import crc32

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from packer_reader.crops import Cut
    from packer_reader.fill import Encoded, Threads
    from packer_reader.format.fields import FieldSpec
    from packer_reader.stores.base import Store

__all__ = ["PixelSource", "Stored", "check"]

Array = npt.NDArray[Any]
_SMALL = 1 << 13
"""Bytes under which an array is copied with the GIL held."""


class PixelSource(Protocol):
    """Pixels of the images of a batch, by their place in it."""

    read: bool
    """Whether it wants the encoded bytes."""

    def whole(self, encoded: Encoded, place: int, out: Array | None = None) -> Array:
        """An image, (h, w, c), in memory of its own or in `out`."""

    def parts(self, encoded: Encoded, place: int, cut: Callable[[int, int], Sequence[Cut]]) -> list[Part]:
        """What some cuts of an image need; see `decode_parts`."""

    def all(self, encoded: Encoded, out: Array, threads: Threads) -> bool:
        """All whole images at once into (n, h, w, c); False where that is not the faster way."""


class Stored:
    """Decoded from the store's bytes."""

    read = True

    def __init__(self, store: Store, field: FieldSpec) -> None:
        """Take what to decode."""
        self._store, self._field = store, field
        self._header = b""

    def whole(self, encoded: Encoded, place: int, out: Array | None = None) -> Array:
        """Checked by CRC and decoded."""
        number, view = self._checked(encoded, place)
        return self._decode(view, number, out)

    def parts(self, encoded: Encoded, place: int, cut: Callable[[int, int], Sequence[Cut]]) -> list[Part]:
        """Checked by CRC and decoded as far as the cuts need it."""
        number, view = self._checked(encoded, place)
        try:
            return decode_parts(self._field, view, cut)
        except DamageError as error:
            raise self._store.damaged(number, str(error)) from None

    def all(self, encoded: Encoded, out: Array, threads: Threads) -> bool:
        """Uncompressed arrays are copied without a look at their CRCs, which would halve the speed."""
        if self._field.codec != "npy":
            return False
        numbers, views = encoded.numbers.tolist(), encoded.views
        if out.nbytes < _SMALL * len(out):
            self._copy_small(views, out, numbers)
        else:
            threads.run(lambda place: self._copy(views[place], out[place], numbers[place]), len(views))
        return True

    def _copy_small(self, views: list[memoryview], out: Array, numbers: list[int]) -> None:
        """Copied faster than a thread is woken: 0.7 us for 1 kB, 3 by numpy."""
        flat, size, header = out.reshape(-1).view(np.uint8).data, out[0].nbytes, self._header
        for place, view in enumerate(views):
            start = len(view) - size
            if header and bytes(view[:start]) == header:
                flat[place * size : (place + 1) * size] = view[start:]
            else:
                self._copy(view, out[place], numbers[place])
                header = self._header

    def _copy(self, view: memoryview, out: Array, number: int) -> None:
        """The header is compared with the last one, not parsed."""
        header = view[: len(view) - out.nbytes]
        if not self._header or header != self._header:
            self._decode(view, number, out)
            self._header = bytes(header)
            return
        np.copyto(out.reshape(-1), np.frombuffer(view, out.dtype, offset=len(header)))

    def _checked(self, encoded: Encoded, place: int) -> tuple[int, memoryview]:
        number, view = int(encoded.numbers[place]), encoded.views[place]
        check(self._store, number, view, encoded.crcs[place])
        return number, view

    def _decode(self, view: memoryview, number: int, out: Array | None = None) -> Array:
        try:
            return decode_image(self._field, view, out)
        except DamageError as error:
            raise self._store.damaged(number, str(error)) from None


def check(store: Store, number: int, view: memoryview | bytearray, crc: int) -> None:
    """Compare the bytes of a field with their CRC-32.

    Raises:
        DamageError: they differ.
    """
    if crc32(view) != crc:
        raise store.damaged(number)
