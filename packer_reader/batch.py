"""Sample numbers to a filled batch: one array per field, images decoded into their place."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from packer_reader.crops import Draw, HorizontalFlip
from packer_reader.decode import decode_field, decode_image
from packer_reader.errors import BatchError, DamageError, MissingError, NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from packer_reader.crops import Crop
    from packer_reader.format.fields import FieldSpec
    from packer_reader.format.manifest import Manifest
    from packer_reader.stores.base import Store

__all__ = ["Batch", "BatchReader", "BatchTuple", "Decode", "View", "guarded", "one_sample"]

Ints = npt.NDArray[np.int64]
Pixels = npt.NDArray[Any]
Decode = Literal["torch", "numpy", "pil", "tv_tensors", "bytes"]


class Batch(dict[str, Any]):
    """Field name to a batched value. A dict of its own type, so that it is never batched once more by mistake."""


class BatchTuple(tuple[Any, ...]):
    """The same for what a transform makes of a batch."""

    __slots__ = ()


def guarded(batch: Any) -> Any:
    """A transform's result in a type that refuses to be batched once more, where it is a dict or a tuple."""
    if type(batch) is dict:
        return Batch(batch)
    return BatchTuple(batch) if type(batch) is tuple else batch


def _refuse_nesting(batch: Sequence[Any], *, collate_fn_map: object = None) -> None:  # noqa: ARG001 - torch's signature
    raise BatchError(
        "the data set gives whole batches already: use DataLoader(ds, batch_size=None, ...) or "
        "packer_reader.loader(ds, ...)"
    )


default_collate_fn_map[Batch] = _refuse_nesting
default_collate_fn_map[BatchTuple] = _refuse_nesting


@dataclass(frozen=True, kw_only=True)
class View:
    """What of each sample training sees, and as what."""

    decode: Decode = "torch"
    """`torch`: uint8 (n, c, h, w), channels last in memory. `numpy`: (n, h, w, c). `pil`, `tv_tensors`: lists.
    `bytes`: encoded, a list of uint8 tensors."""
    crop: Crop | None = None
    flip: HorizontalFlip | None = None
    fields: tuple[str, ...] | None = None
    """Others are not read; None takes all."""
    rename: Mapping[str, str] | None = None
    """Field name to the name in the batch."""
    ragged: bool = False
    """Images of different sizes as a list instead of an error."""
    with_id: bool = False
    """Add `id`, the sample numbers."""

    def __post_init__(self) -> None:
        if self.decode not in get_args(Decode):
            raise UsageError(f"decode is {self.decode!r}, it must be one of {', '.join(get_args(Decode))}")
        if self.decode == "tv_tensors":
            _tv_image()
        if self.crop is not None and (isinstance(self.crop, type) or not hasattr(self.crop, "output")):
            raise UsageError(
                f"crop is {self.crop!r}, it must be RandomResizedCrop(...), CenterCrop(...) or Resize(...)"
            )
        if self.flip is not None and not isinstance(self.flip, HorizontalFlip):
            raise UsageError(f"flip is {self.flip!r}, it must be HorizontalFlip(...)")
        if self.decode == "bytes" and (self.crop or self.flip):
            raise UsageError('crop and flip need pixels, decode="bytes" gives none: leave them out')

    def chosen(self, manifest: Manifest) -> list[int]:
        """Places of the fields to give.

        Raises:
            NotFoundError: the store has no such field.
            UsageError: two fields would get one name.
        """
        names = [f.name for f in manifest.fields]
        for name in [*(self.fields or ()), *(self.rename or ())]:
            if name not in names:
                raise NotFoundError(f"there is no field {name!r}: the store has {', '.join(names)}")
        places = [place for place, name in enumerate(names) if self.fields is None or name in self.fields]
        given = [(self.rename or {}).get(names[place], names[place]) for place in places]
        twice = [name for name in given if given.count(name) > 1 or name in {"id", "valid"}]
        if twice:
            raise UsageError(
                f"rename gives {twice[0]!r} to two fields, or takes a name of the batch itself: choose another"
            )
        return places


def _tv_image() -> Any:
    try:
        return import_module("torchvision.tv_tensors").Image
    except Exception as error:  # noqa: BLE001 - a torchvision of another torch fails with a RuntimeError
        raise MissingError(
            f'decode="tv_tensors" needs a torchvision that fits this torch ({error}): install it, or take '
            'decode="torch"'
        ) from None


class BatchReader:
    """Reads batches of one store in one view."""

    def __init__(self, store: Store, view: View, seed: int) -> None:
        """Check that the view fits the store.

        Raises:
            BatchError: images differ in size and nothing makes them equal.
            NotFoundError: a field is missing.
            UsageError: two fields would get one name, or images have no such form.
        """
        self.store, self.view, self._seed = store, view, seed
        places = view.chosen(store.manifest)
        self._fields = [store.manifest.fields[place] for place in places]
        # Labels come from their column: no field is read for them.
        self._columns = {f.name for f in self._fields if f.kind == "label" and "label" in store.columns}
        self._read = [place for place, f in zip(places, self._fields, strict=True) if f.name not in self._columns]
        for field in self._fields:
            if field.kind == "image":
                self._check_stackable(field)
                if view.decode == "pil" and field.dtype == "uint16" and field.maximum[-1] == 3:
                    raise UsageError(
                        'decode="pil" is not for colour images of 16 bits, which Pillow does not have: take '
                        'decode="numpy" or decode="torch"'
                    )

    def _check_stackable(self, field: FieldSpec) -> None:
        if self.view.ragged or self.view.decode not in {"torch", "numpy"} or self._image_size(field) is not None:
            return
        raise BatchError(
            f"images of {self.store!r} differ in size and cannot be stacked: give crop=RandomResizedCrop(224) or "
            "another crop, or ragged=True for lists, or build with --fit crop"
        )

    def _image_size(self, field: FieldSpec) -> tuple[int, int] | None:
        height, width = field.shape[:2]
        if self.view.crop is not None:
            return self.view.crop.output(height, width)
        return None if height is None or width is None else (height, width)

    def announce(self, numbers: Ints) -> None:
        """Let the system fetch what `read` will want, int64 (n,) in stored order, all at once."""
        if self._read:
            self.store.announce(numbers, self._read)

    def read(self, numbers: Ints, epoch: int) -> Batch:
        """One batch.

        Args:
            numbers: sample numbers, int64 (n,).
            epoch: what random crops are drawn for.

        Returns:
            One value per field, by its name or its new one.

        Raises:
            StoreError: a sample is damaged.
        """
        encoded = self.store.read(numbers, self._read) if self._read else []
        batch, rename, place = Batch(), self.view.rename or {}, 0
        for field in self._fields:
            if field.name in self._columns:
                value: Any = self.store.columns.numbers("label")[numbers].astype(np.int64)
                value = value if self.view.decode == "numpy" else torch.from_numpy(value)
            else:
                value = self._field(field, [blobs[place] for blobs in encoded], numbers, epoch)
                place += 1
            batch[rename.get(field.name, field.name)] = value
        if self.view.with_id:
            batch["id"] = numbers.copy() if self.view.decode == "numpy" else torch.from_numpy(numbers.copy())
        return batch

    def _field(self, field: FieldSpec, blobs: list[memoryview], numbers: Ints, epoch: int) -> Any:
        if self.view.decode == "bytes":
            return [torch.frombuffer(bytearray(blob), dtype=torch.uint8) for blob in blobs]
        if field.kind != "image":
            return [decode_field(field, blob) for blob in blobs]
        size = None if self.view.ragged else self._image_size(field)
        if self.view.decode in {"pil", "tv_tensors"} or size is None:
            return [
                self._present(self._image(field, blob, int(number), epoch))
                for blob, number in zip(blobs, numbers, strict=True)
            ]
        stacked = np.empty((len(blobs), *size, field.maximum[-1]), field.dtype)
        for out, blob, number in zip(stacked, blobs, numbers.tolist(), strict=True):
            self._image(field, blob, number, epoch, out)
        return stacked if self.view.decode == "numpy" else torch.from_numpy(stacked).permute(0, 3, 1, 2)

    def _image(self, field: FieldSpec, blob: memoryview, number: int, epoch: int, out: Pixels | None = None) -> Pixels:
        view = self.view
        plain = view.crop is None and view.flip is None
        try:
            pixels = decode_image(field, blob, out if plain else None)
        except DamageError as error:
            raise self.store.damaged(number, str(error)) from None
        if plain:
            return pixels
        draw = Draw(self._seed, epoch, number)
        if view.crop is not None:
            pixels = view.crop(pixels, draw)
        if view.flip is not None:
            pixels = view.flip(pixels, draw)
        if out is None:
            return pixels
        np.copyto(out, pixels)
        return out

    def _present(self, pixels: Pixels) -> Any:
        pixels = np.ascontiguousarray(pixels)
        if self.view.decode == "numpy":
            return pixels
        if self.view.decode == "pil":
            from PIL import Image  # noqa: PLC0415 - loaded only for this form

            return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
        tensor = torch.from_numpy(pixels if pixels.flags.writeable else pixels.copy()).permute(2, 0, 1)
        return _tv_image()(tensor) if self.view.decode == "tv_tensors" else tensor


def one_sample(batch: Batch, place: int) -> dict[str, Any]:
    """One sample out of a batch: copies of tensors and arrays, numbers as int."""
    sample = {}
    for name, values in batch.items():
        value = values[place]
        if isinstance(value, torch.Tensor):
            value = value.clone() if value.ndim else value.item()
        elif isinstance(value, np.ndarray | np.generic):
            value = value.copy() if value.ndim else value.item()
        sample[name] = value
    return sample
