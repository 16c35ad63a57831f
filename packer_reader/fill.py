"""Encoded fields of a batch to arrays: decoded in place, on several threads where asked for."""

from __future__ import annotations

import itertools
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from packer_reader.crops import Cut, Draw, flip
from packer_reader.decode import decode_field, decode_image, decode_parts
from packer_reader.errors import DamageError, MissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from packer_reader.batch import View
    from packer_reader.crops import Crop
    from packer_reader.format.fields import FieldSpec
    from packer_reader.stores.base import Store

__all__ = ["Column", "Encoded", "Others", "Pictures", "Threads", "tv_image"]

_SMALL = 1 << 13
"""Bytes under which an array is copied with the GIL held."""
Array = npt.NDArray[Any]
Size = tuple[int, int]
_CHUNK = 8
"""Samples that a thread takes at a time."""


class Threads:
    """Runs a function over the places of a batch, on the calling thread and as many others as were asked for."""

    def __init__(self, count: int) -> None:
        """Take the number of threads in all; they start when there is something to do."""
        self._count = count
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_count": self._count, "_pool": None}

    def run(self, function: Callable[[int], None], count: int) -> None:
        """Call `function(0)` to `function(count - 1)`; raises the first failure."""
        if self._count == 1 or count <= _CHUNK:
            for place in range(count):
                function(place)
            return
        if self._pool is None or self._pool[0] != os.getpid():  # threads do not survive a fork
            self._pool = os.getpid(), ThreadPoolExecutor(self._count - 1, "packer-decode")
        starts = itertools.count(0, _CHUNK)  # one call of next is atomic

        def work() -> None:
            while (start := next(starts)) < count:
                for place in range(start, min(start + _CHUNK, count)):
                    function(place)

        others = [self._pool[1].submit(work) for _ in range(self._count - 1)]
        try:
            work()
        finally:
            for other in others:
                other.exception()  # all have ended before anyone looks at the memory
        for other in others:
            other.result()


@dataclass(frozen=True, slots=True)
class Encoded:
    """One field of the samples of a batch."""

    numbers: npt.NDArray[np.int64]
    """Sample numbers, (n,)."""
    views: list[memoryview]
    crcs: list[int]
    epoch: int


@dataclass(frozen=True, slots=True)
class Column:
    """A label: its values come from the store's column."""

    field: FieldSpec

    @property
    def dtype(self) -> Any:
        """int64."""
        return np.int64

    @property
    def shapes(self) -> list[tuple[int, ...] | None]:
        """A number per sample."""
        return [()]


@dataclass(frozen=True, slots=True)
class Others:
    """Any field that is given as a list."""

    store: Store
    field: FieldSpec
    as_bytes: bool
    """Encoded, as uint8 tensors."""

    @property
    def dtype(self) -> Any:
        """None of its own."""
        return None

    @property
    def shapes(self) -> list[tuple[int, ...] | None]:
        """Values differ."""
        return [None]

    def fill(self, encoded: Encoded, outs: Sequence[Array | None], threads: Threads) -> list[list[Any] | None]:  # noqa: ARG002 - the same seam for all fields
        """The values."""
        found = []
        for number, view, crc in zip(encoded.numbers.tolist(), encoded.views, encoded.crcs, strict=True):
            _check(self.store, number, view, crc)
            if self.as_bytes:
                found.append(torch.frombuffer(bytearray(view), dtype=torch.uint8))
            else:
                found.append(decode_field(self.field, view))
        return [found]


class Pictures:
    """An image field, in one view or several."""

    def __init__(self, store: Store, field: FieldSpec, view: View, seed: int, sizes: Sequence[Size | None]) -> None:
        """Take what decides the pixels; `sizes` has one for each view, None when it comes as a list."""
        self._store, self._field, self._view, self._seed = store, field, view, seed
        self._crops = tuple(view.crops.values())
        self.dtype = np.dtype(field.dtype)
        self.shapes = [None if size is None else (*size, field.maximum[-1]) for size in sizes]
        self._plain = self._crops == (None,) and view.flip is None
        # Uncompressed arrays are copied as they are: comparing CRCs would halve the speed, and verify --full does it.
        self._checked = field.codec != "npy"
        self._header = b""

    def fill(self, encoded: Encoded, outs: Sequence[Array | None], threads: Threads) -> list[list[Any] | None]:
        """Decode all, each view into its (n, h, w, c); where there is none for a view, its images are returned."""
        numbers, views, crcs = encoded.numbers.tolist(), encoded.views, encoded.crcs
        first = outs[0]
        if self._plain and not self._checked and first is not None:
            if first.nbytes < _SMALL * len(first):
                self._copy_small(views, first, numbers)
            else:
                threads.run(lambda place: self._copy(views[place], first[place], numbers[place]), len(views))
            return [None]
        listed: list[list[Any] | None] = [[None] * len(views) if out is None else None for out in outs]

        def one(place: int) -> None:
            number, view = numbers[place], views[place]
            if self._checked or first is None:
                _check(self._store, number, view, crcs[place])
            into = [None if out is None else out[place] for out in outs]
            shown = [self._decode(view, number, into[0])] if self._plain else self._shown(view, number, encoded, into)
            for found, pixels in zip(listed, shown, strict=True):
                if found is not None:
                    found[place] = self._present(pixels)

        threads.run(one, len(views))
        return listed

    def _copy_small(self, views: list[memoryview], out: Array, numbers: list[int]) -> None:
        """Uncompressed arrays that are copied faster than a thread is woken: 0.7 us for 1 kB, 3 by numpy."""
        flat, size, header = out.reshape(-1).view(np.uint8).data, out[0].nbytes, self._header
        for place, view in enumerate(views):
            start = len(view) - size
            if header and bytes(view[:start]) == header:
                flat[place * size : (place + 1) * size] = view[start:]
            else:
                self._copy(view, out[place], numbers[place])
                header = self._header

    def _copy(self, view: memoryview, out: Array, number: int) -> None:
        """An uncompressed array: its header is compared with the last one, not parsed."""
        header = view[: len(view) - out.nbytes]
        if not self._header or header != self._header:
            self._decode(view, number, out)
            self._header = bytes(header)
            return
        np.copyto(out.reshape(-1), np.frombuffer(view, out.dtype, offset=len(header)))

    def _decode(self, view: memoryview, number: int, out: Array | None = None) -> Array:
        try:
            return decode_image(self._field, view, out)
        except DamageError as error:
            raise self._store.damaged(number, str(error)) from None

    def _shown(self, view: memoryview, number: int, encoded: Encoded, into: Sequence[Array | None]) -> Sequence[Array]:
        """The parts of an image that training sees, each in memory of its own or in what is given for it."""
        draws = [Draw(self._seed, encoded.epoch, number, place) for place in range(len(into))]
        if self._crops == (None,):
            shown = [self._decode(view, number, into[0])]
        else:
            try:
                parts = decode_parts(self._field, view, partial(_cuts, self._crops, draws))
            except DamageError as error:
                raise self._store.damaged(number, str(error)) from None
            shown = [part.resized(out) for part, out in zip(parts, into, strict=True)]
        mirror = self._view.flip
        if mirror is not None:
            shown = [flip(one) if mirror.drawn(draw) else one for one, draw in zip(shown, draws, strict=True)]
        return shown

    def _present(self, pixels: Array) -> Any:
        if self._view.decode == "numpy":
            return pixels
        if self._view.decode == "pil":
            from PIL import Image  # noqa: PLC0415 - loaded only for this form

            return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
        tensor = torch.from_numpy(pixels if pixels.flags.writeable else pixels.copy()).permute(2, 0, 1)
        return tv_image()(tensor) if self._view.decode == "tv_tensors" else tensor


def _cuts(crops: Sequence[Crop | None], draws: Sequence[Draw], height: int, width: int) -> list[Cut]:
    whole = Cut(0, 0, height, width, (height, width))
    return [whole if crop is None else crop.cut(height, width, draw) for crop, draw in zip(crops, draws, strict=True)]


def _check(store: Store, number: int, view: memoryview, crc: int) -> None:
    if zlib.crc32(view) != crc:
        raise store.damaged(number)


def tv_image() -> Any:
    """Torchvision's image type.

    Raises:
        MissingError: there is no torchvision, or one of another torch.
    """
    try:
        return import_module("torchvision.tv_tensors").Image
    except Exception as error:  # noqa: BLE001 - a torchvision of another torch fails with a RuntimeError
        raise MissingError(
            f'decode="tv_tensors" needs a torchvision that fits this torch ({error}): install it, or take '
            'decode="torch"'
        ) from None
