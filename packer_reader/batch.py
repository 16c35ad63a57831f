"""Sample numbers to a filled batch: one array per field, images decoded into their place."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from packer_reader.decode import as_picture
from packer_reader.errors import BatchError, UsageError
from packer_reader.fill import Column, Drawn, Encoded, Others, Pictures, Threads
from packer_reader.format.fields import ROWS
from packer_reader.handle import Handle
from packer_reader.packed import Packed
from packer_reader.pixels import Stored
from packer_reader.sequences import Filler, SequenceStore
from packer_reader.stores.spans import Spans
from packer_reader.tokens import Bounds, Lengths, Sequences
from packer_reader.view import PICTURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from packer_reader.crops import Crop
    from packer_reader.format.fields import FieldSpec
    from packer_reader.pixels import PixelSource
    from packer_reader.stores.base import Store
    from packer_reader.view import View

__all__ = ["Batch", "BatchReader", "BatchTuple", "guarded", "one_sample"]

Direct = Sequences | Bounds | Filler
"""Fields that are read straight from memory."""
Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


class Batch(dict[str, Any]):
    """Field name to a batched value. A dict of its own type, so that it is never batched once more by mistake."""

    def __copy__(self) -> Batch:
        """What DataLoader's `default_convert` begins with: `copy.copy` takes 2 us for a subclass without it."""
        return Batch(self)


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
default_collate_fn_map[Handle] = _refuse_nesting


class BatchReader:
    """Reads batches of one store in one view."""

    def __init__(
        self,
        store: Store | SequenceStore,
        view: View,
        seed: int,
        threads: int = 1,
        cached: Mapping[str, PixelSource] | None = None,
    ) -> None:
        """Check that the view fits the store.

        Args:
            store: to read.
            view: what of it.
            seed: what random crops are drawn from.
            threads: that decode one batch together.
            cached: image fields whose pixels lie elsewhere, by name.

        Raises:
            BatchError: images differ in size and nothing makes them equal.
            NotFoundError: a field is missing.
            UsageError: two fields would get one name, or images have no such form.
        """
        self.store, self.view, self._seed = store, view, seed
        self._threads = Threads(threads)
        places = view.chosen(store.manifest)
        fields = self._specs = [store.manifest.fields[place] for place in places]
        # Labels come from their column: no field is read for them.
        columns = {f.name for f in fields if f.kind in {"label", "number"} and f.name in store.columns}
        self._cached = cached or {}
        elsewhere = columns | self._cached.keys()
        wanted = [place for place, f in zip(places, fields, strict=True) if f.name not in elsewhere]
        self._fields = [
            Column(f) if f.name in columns else self._field(f, place) for place, f in zip(places, fields, strict=True)
        ]
        direct = {f.name for f, made in zip(fields, self._fields, strict=True) if isinstance(made, Direct)}
        self._read = [place for place in wanted if store.manifest.fields[place].name not in direct]
        """Places of the fields that are read as bytes and then decoded."""
        self._wanted = wanted
        self._names = [view.names(f) for f in fields]

    def _field(self, field: FieldSpec, place: int) -> Pictures | Drawn | Others | Lengths | Direct:
        view = self.view
        tokens = self._of_tokens(field, place)
        if tokens is not None or isinstance(self.store, SequenceStore):
            assert tokens is not None
            return tokens
        if field.kind == "boxes" and view.decode != "bytes":
            return Drawn(self.store, field, view, self._seed)
        if field.kind not in PICTURES or view.decode == "bytes":
            return Others(self.store, field, as_bytes=view.decode == "bytes")
        sizes = [None if view.ragged else _image_size(crop, field) for crop in view.crops.values()]
        if None in sizes and not view.ragged and view.decode in {"torch", "numpy"}:
            raise BatchError(
                f"images of {self.store!r} differ in size and cannot be stacked: give crop=RandomResizedCrop(224) or "
                "another crop, or ragged=True for lists, or build with --fit crop"
            )
        if view.decode == "pil" and field.dtype == "uint16" and field.maximum[-1] == 3:
            raise UsageError(
                'decode="pil" is not for colour images of 16 bits, which Pillow does not have: take '
                'decode="numpy" or decode="torch"'
            )
        listed = view.decode in {"pil", "tv_tensors"}
        ways = [None] * len(sizes) if listed else sizes
        if field.kind != "image":
            ignore = self.store.manifest.recipe.get("ignore_label", 0) if field.kind == "mask" else 0
            return Pictures(Stored(self.store, as_picture(field)), field, view, self._seed, ways, fill=ignore)
        source = self._cached.get(field.name) or Stored(self.store, field)
        return Pictures(source, field, view, self._seed, ways)

    def _of_tokens(self, field: FieldSpec, place: int) -> Lengths | Direct | None:
        """A field of text; None for any other."""
        if isinstance(self.store, SequenceStore):
            if self.view.decode == "bytes":
                raise UsageError('decode="bytes" gives stored fields, and sequences of seq_len are made while reading')
            return self.store.filler(field, self.view.dtype)
        if self.view.decode == "bytes":
            return None
        if field.codec == ROWS:
            if field.kind == "bounds":
                return Bounds(self.store, field, place)
            return Sequences(self.store, field, place, self.view.dtype)
        return Lengths(self.store, field, self.view.dtype) if field.kind == "tokens" else None

    @property
    def names(self) -> Sequence[Sequence[str]]:
        """What each field is called in the batch, in each view."""
        return self._names

    @property
    def filled(self) -> Sequence[object]:
        """What fills each field of a batch."""
        return self._fields

    def announce(self, numbers: Ints) -> bool:
        """Let the system fetch what `read` will want, int64 (n,) in stored order, all at once; see `ahead.announce`."""
        return bool(self._wanted) and self.store.announce(numbers, self._wanted)

    def arrays(self, count: int) -> list[tuple[str, Any, tuple[int, ...]]]:
        """What of a batch of so many samples has one dtype and shape: name, dtype and shape in memory."""
        found = []
        for names, field in zip(self._names, self._fields, strict=True):
            for name, shape in zip(names, field.shapes, strict=True):
                if shape is not None:
                    found.append((name, field.dtype, (count, *shape)))
        return found + ([("id", np.int64, (count,))] if self.view.with_id else [])

    @property
    def scratch(self) -> int:
        """Bytes that the largest images take while they are decoded, on all threads."""
        pictures = [spec for spec in self._specs if spec.kind == "image" and spec.codec == "jpg"]
        sizes = [int(np.prod(spec.maximum)) for spec in pictures] if self.view.crop is not None else []
        return self._threads.count * max(sizes, default=0)

    @property
    def cached_bytes(self) -> int:
        """Bytes of decoded images that all processes of a machine share."""
        return sum(getattr(source, "nbytes", 0) for source in self._cached.values())

    def listed(self) -> list[FieldSpec]:
        """Fields that come as lists, since their values have no one size; once for each view."""
        pairs = zip(self._specs, self._fields, strict=True)
        return [spec for spec, field in pairs for shape in field.shapes if shape is None]

    def fill(self, numbers: Ints, epoch: int, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Read a batch into given memory.

        Args:
            numbers: sample numbers, int64 (n,).
            epoch: what random crops are drawn for.
            arrays: for each of `arrays(n)` an array of its dtype and shape.

        Returns:
            The other fields, by name.

        Raises:
            StoreError: a sample is damaged.
        """
        spans, store = Spans([], []), self.store
        if self._read and not isinstance(store, SequenceStore):
            spans = store.spans(numbers, self._read)
        rest, place = dict[str, Any](), 0
        for names, field in zip(self._names, self._fields, strict=True):
            if isinstance(field, Column):
                arrays[names[0]][...] = self.store.columns.numbers(field.field.name)[numbers]
                continue
            if isinstance(field, Direct) or (isinstance(field, Pictures) and not field.source.read):
                one = Encoded(numbers, [], [], epoch)
            else:
                one = Encoded(numbers, spans.views[place], spans.crcs[place], epoch)
                place += 1
            listed = field.fill(one, [arrays.get(name) for name in names], self._threads)
            rest.update((name, values) for name, values in zip(names, listed, strict=True) if values is not None)
        if self.view.with_id:
            arrays["id"][...] = numbers
        return rest

    @property
    def finish(self) -> Finish:
        """What makes a batch of filled arrays and the rest; it travels to the trainer."""
        pairs = zip(self._names, self._fields, strict=True)
        pictures = [name for names, f in pairs if isinstance(f, Pictures) and f.coloured for name in names]
        order = (*itertools.chain(*self._names), *(("id",) if self.view.with_id else ()))
        return Finish(order, frozenset(pictures), tensors=self.view.decode != "numpy")

    def read(self, numbers: Ints, epoch: int) -> Batch:
        """One batch in memory of its own.

        Args:
            numbers: sample numbers, int64 (n,).
            epoch: what random crops are drawn for.

        Returns:
            One value per field, by its name or its new one.

        Raises:
            StoreError: a sample is damaged.
        """
        arrays = {name: np.empty(shape, dtype) for name, dtype, shape in self.arrays(len(numbers))}
        return self.finish(arrays, self.fill(numbers, epoch, arrays))


def _image_size(crop: Crop | None, field: FieldSpec) -> tuple[int, int] | None:
    height, width = field.shape[:2]
    if crop is not None:
        return crop.output(height, width)
    return None if height is None or width is None else (height, width)


@dataclass(frozen=True)
class Finish:
    """Filled arrays and the rest to a batch."""

    order: tuple[str, ...]
    pictures: frozenset[str]
    tensors: bool

    def __call__(self, arrays: Mapping[str, Array], rest: Mapping[str, Any]) -> Batch:
        batch = Batch()
        for name in self.order:
            if name not in arrays:
                batch[name] = rest[name].list() if isinstance(rest[name], Packed) else rest[name]
            elif not self.tensors:
                batch[name] = arrays[name]
            else:
                tensor = torch.from_numpy(arrays[name])
                batch[name] = tensor.permute(0, 3, 1, 2) if name in self.pictures else tensor
        for name in arrays.keys() - set(self.order):
            batch[name] = torch.from_numpy(arrays[name]) if self.tensors else arrays[name]
        return batch


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
