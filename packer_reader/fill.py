"""Encoded fields of a batch to arrays: decoded in place, on several threads where asked for."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from packer_reader.boxes import Boxes, arrays_of, cut_boxes
from packer_reader.crops import Cut, Draw, flip
from packer_reader.decode import decode_field
from packer_reader.errors import MissingError
from packer_reader.pixels import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from packer_reader.crops import Crop
    from packer_reader.format.fields import FieldSpec
    from packer_reader.pixels import PixelSource
    from packer_reader.stores.base import Store
    from packer_reader.view import View

__all__ = ["Column", "Drawn", "Encoded", "Others", "Pictures", "Threads", "tv_tensor"]

Array = npt.NDArray[Any]
Size = tuple[int, int]
_CHUNK = 8
"""Samples that a thread takes at a time, at most."""


class Threads:
    """Runs a function over the places of a batch, on the calling thread and as many others as were asked for."""

    def __init__(self, count: int) -> None:
        """Take the number of threads in all; they start when there is something to do."""
        self.count = count
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"count": self.count, "_pool": None}

    def run(self, function: Callable[[int], object], count: int) -> None:
        """Call `function(0)` to `function(count - 1)`; raises a failure once all threads have ended."""
        if self.count == 1 or count <= _CHUNK:
            for place in range(count):
                function(place)
            return
        if self._pool is None or self._pool[0] != os.getpid():  # threads do not survive a fork
            self._pool = os.getpid(), ThreadPoolExecutor(self.count - 1, "packer-decode")
        pieces = iter(_pieces(count, self.count))  # which threads may share: one call of next is atomic
        others = [self._pool[1].submit(_work, function, pieces) for _ in range(self.count - 1)]
        try:
            _work(function, pieces)
        finally:
            for other in others:
                other.exception()  # all have ended before anyone looks at the memory
        for other in others:
            other.result()


def _work(function: Callable[[int], object], pieces: Iterator[range]) -> None:
    try:
        for piece in pieces:
            for place in piece:
                function(place)
    except BaseException:
        for _ in pieces:  # the other threads need not go on
            pass
        raise


@lru_cache
def _pieces(count: int, threads: int) -> tuple[range, ...]:
    """The places of a batch in pieces, large ones first, so that threads that take one after the other end together.

    Guided self-scheduling (Polychronopoulos and Kuck 1987).
    """
    pieces, start = [], 0
    while start < count:
        size = max(1, min(_CHUNK, (count - start) // (2 * threads)))
        pieces.append(range(start, start + size))
        start += size
    return tuple(pieces)


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
    """A label or a number: its values come from the store's column."""

    field: FieldSpec

    @property
    def dtype(self) -> Any:
        """int64 for labels, a number's own."""
        return np.int64 if self.field.kind == "label" else np.dtype(self.field.dtype)

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

    def fill(self, encoded: Encoded, *_: object) -> list[list[Any] | None]:
        """The values; see `Pictures.fill`."""
        found = []
        for number, view, crc in zip(encoded.numbers.tolist(), encoded.views, encoded.crcs, strict=True):
            if self.as_bytes:
                copied = np.array(view)
                check(self.store, number, copied.data, crc)
                found.append(torch.from_numpy(copied))
            else:
                check(self.store, number, view, crc)
                found.append(decode_field(self.field, view))
        return [found]


class Drawn:
    """Boxes, which get the crops and flips of their image."""

    dtype = None

    def __init__(self, store: Store, field: FieldSpec, view: View, seed: int) -> None:
        """Take what decides where they end up."""
        self._store, self._field, self._view, self._seed = store, field, view, seed
        self._crops = tuple(view.crops.values())
        recipe = store.manifest.recipe
        self._least, self._visible = float(recipe.get("min_box_size", 1)), float(recipe.get("min_visibility", 0))

    @property
    def shapes(self) -> list[tuple[int, ...] | None]:
        """One value per view, of any length."""
        return [None] * len(self._crops)

    def fill(self, encoded: Encoded, *_: object) -> list[list[Any] | Boxes | None]:
        """The boxes of the batch, in each view; see `Pictures.fill`."""
        found: list[list[tuple[Array, Array, Size]]] = [[] for _ in self._crops]
        heights, widths = (self._store.columns.numbers(name)[encoded.numbers] for name in ("height", "width"))
        sizes = zip(heights.tolist(), widths.tolist(), strict=True)
        for number, view, crc, size in zip(encoded.numbers.tolist(), encoded.views, encoded.crcs, sizes, strict=True):
            check(self._store, number, view, crc)
            boxes, labels = arrays_of(decode_field(self._field, view))
            draws = [Draw(self._seed, encoded.epoch, number, place) for place in range(len(self._crops))]
            for values, cut, draw in zip(found, _cuts(self._crops, draws, *size), draws, strict=True):
                flipped = self._view.flip is not None and self._view.flip.drawn(draw)
                left = cut_boxes(boxes, labels, cut, flipped=flipped, least=self._least, visible=self._visible)
                values.append((*left, cut.size))
        if self._view.decode == "tv_tensors":
            return [[_bounding(*value) for value in values] for values in found]
        return [Boxes.of([(boxes, labels) for boxes, labels, _ in values]) for values in found]


class Pictures:
    """An image field, in one view or several; or a mask or depth map, which gets the same geometry, unblended."""

    def __init__(
        self,
        source: PixelSource,
        field: FieldSpec,
        view: View,
        seed: int,
        sizes: Sequence[Size | None],
        *,
        fill: int = 0,
    ) -> None:
        """Take what decides the pixels.

        Args:
            source: of the pixels.
            field: its description.
            view: what of it.
            seed: what random crops are drawn from.
            sizes: one for each view, None when it comes as a list.
            fill: what a mask has outside of the image.
        """
        self.source, self._view, self._seed = source, view, seed
        self._crops = tuple(view.crops.values())
        self.dtype = np.dtype(field.dtype)
        self.coloured = field.kind == "image"
        """Whether pixels have channels."""
        self._fill = None if self.coloured else fill
        channels = (field.maximum[-1],) if self.coloured else ()
        self.shapes = [None if size is None else (*size, *channels) for size in sizes]

    def fill(self, encoded: Encoded, outs: Sequence[Array | None], threads: Threads) -> list[list[Any] | None]:
        """Decode all, each view into its (n, h, w, c); where there is none for a view, its images are returned."""
        if not self.coloured:
            outs = [None if out is None else out[..., None] for out in outs]
        first, plain = outs[0], self._crops == (None,) and self._view.flip is None
        count = len(encoded.numbers)
        if plain and first is not None:
            if not self.source.all(encoded, first, threads):
                threads.run(lambda place: self.source.whole(encoded, place, first[place]), count)
            return [None]
        listed: list[list[Any] | None] = [[None] * count if out is None else None for out in outs]

        def one(place: int) -> None:
            into = [None if out is None else out[place] for out in outs]
            shown = [self.source.whole(encoded, place)] if plain else self._shown(encoded, place, into)
            for found, pixels in zip(listed, shown, strict=True):
                if found is not None:
                    found[place] = self._present(pixels)

        threads.run(one, count)
        return listed

    def _shown(self, encoded: Encoded, place: int, into: Sequence[Array | None]) -> Sequence[Array]:
        """The parts of an image that training sees, each in memory of its own or in what is given for it."""
        number = int(encoded.numbers[place])
        draws = [Draw(self._seed, encoded.epoch, number, view) for view in range(len(into))]
        if self._crops == (None,):
            shown = [self.source.whole(encoded, place, into[0])]
        else:
            parts = self.source.parts(encoded, place, partial(_cuts, self._crops, draws))
            shown = [part.resized(out, self._fill) for part, out in zip(parts, into, strict=True)]
        mirror = self._view.flip
        if mirror is not None:
            shown = [flip(one) if mirror.drawn(draw) else one for one, draw in zip(shown, draws, strict=True)]
        return shown

    def _present(self, pixels: Array) -> Any:
        if not self.coloured:
            pixels = pixels[..., 0]
            if self._view.decode == "torch":
                return torch.from_numpy(pixels)
        if self._view.decode == "numpy":
            return pixels
        if self._view.decode == "pil":
            from PIL import Image  # noqa: PLC0415 - loaded only for this form

            return Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)
        tensor = torch.from_numpy(pixels if pixels.flags.writeable else pixels.copy())
        if not self.coloured:
            return tv_tensor("Mask")(tensor)
        tensor = tensor.permute(2, 0, 1)
        return tv_tensor("Image")(tensor) if self._view.decode == "tv_tensors" else tensor


def _cuts(crops: Sequence[Crop | None], draws: Sequence[Draw], height: int, width: int) -> list[Cut]:
    whole = Cut(0, 0, height, width, (height, width))
    return [whole if crop is None else crop.cut(height, width, draw) for crop, draw in zip(crops, draws, strict=True)]


def _bounding(boxes: Array, labels: Array, size: Size) -> dict[str, Any]:
    """The boxes of one image as torchvision's transforms and detectors take them."""
    shown = tv_tensor("BoundingBoxes")(torch.from_numpy(boxes), format="XYXY", canvas_size=size)
    return {"boxes": shown, "labels": torch.from_numpy(labels)}


def tv_tensor(name: str) -> Any:
    """Torchvision's type of this name: `Image`, `Mask`, `BoundingBoxes`.

    Raises:
        MissingError: there is no torchvision, or one of another torch.
    """
    try:
        return getattr(import_module("torchvision.tv_tensors"), name)
    except Exception as error:  # noqa: BLE001 - a torchvision of another torch fails with a RuntimeError
        raise MissingError(
            f'decode="tv_tensors" needs a torchvision that fits this torch ({error}): install it, or take '
            'decode="torch"'
        ) from None
