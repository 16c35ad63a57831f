"""A map-style Python data set as a source: of torch, of Hugging Face, or anything with `len` and `[i]`.

What `[i]` gives is a mapping, or a tuple whose parts are counted. Images may be encoded bytes, Pillow images, or uint8
or uint16 arrays and tensors; labels are whole numbers.
"""

from __future__ import annotations

import hashlib
import importlib
import operator
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from packer.sample import RawSample, Ref
from packer.sources.base import Listing
from packer.sources.refs import Common, Places
from packer_reader.errors import SampleError, SourceError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from packer.sources.refs import RefWriter

__all__ = ["PythonDataset", "load_dataset", "wrap_dataset"]

_CHUNK = 1 << 15
"""Refs written at a time."""
_LOOKED_AT = 16
"""Samples that decide the codec of the store."""


@dataclass(frozen=True)
class PythonDataset:
    """A data set, as the workers get it: how to have it again, and which part is which field."""

    origin: str
    """`MODULE:ATTRIBUTE`, or what the data set is, in words."""
    image: Any
    """Key or number of the image in a sample."""
    label: Any
    """The same of the label; None without one."""
    known: tuple[str, ...] = ()
    pickled: str | None = None
    """File of the pickled data set; None when workers import it."""
    type: str = "python"
    _dataset: Any = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_dataset": None}

    def stored_at(self, path: Path) -> PythonDataset:
        """The same with the data set pickled into a file, so that it does not travel with every task.

        Raises:
            SourceError: it cannot be pickled.
        """
        if self._dataset is None:
            return self
        try:
            path.write_bytes(pickle.dumps(self._dataset))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise SourceError(
                f"the data set cannot be sent to worker processes ({error}): use --runner serial"
            ) from None
        return PythonDataset(self.origin, self.image, self.label, self.known, str(path), _dataset=self._dataset)

    def scan(self, refs: RefWriter) -> Listing:
        """List the samples by number; see `Source.scan`."""
        dataset = self._own
        count = len(dataset)
        if not count:
            raise SourceError(f"{self.origin} has no samples")
        labels = self._labels(dataset)
        for start in range(0, count, _CHUNK):
            numbers = range(start, min(count, start + _CHUNK))
            nothing = [0] * len(numbers)
            refs.add([b"%d" % number for number in numbers], Places(nothing, nothing), Common(b"row "))
        names = self.known or _class_names(dataset, self.label)
        return Listing(
            type=self.type,
            reason=self.origin,
            classes=names or None,
            labelled=self.label is not None,
            splits=(),
            found=count,
            bytes=0,
            digest=refs.digest(f"{self.origin} {getattr(dataset, '_fingerprint', '')} {labels}".encode()),
            suffixes=Counter(self._suffix(number) for number in range(0, count, -(-count // _LOOKED_AT))),
            ignored=Counter(),
        )

    def _suffix(self, number: int) -> str:
        """What a sample's image would be called as a file: JPEG and WebP stay what they are, all else is lossless."""
        try:
            image = _pixels_or_bytes(self._own[number][self.image])
        except Exception:  # noqa: BLE001 - the code of others; it will be that sample's failure
            return ".png"
        head = image[:12] if isinstance(image, bytes) else b""
        return ".jpg" if head[:2] == b"\xff\xd8" else ".webp" if head[8:12] == b"WEBP" else ".png"

    def _labels(self, dataset: Any) -> str:
        """A digest of the labels where they can be had without the images."""
        targets = getattr(dataset, "targets", None)
        if self.label is None or targets is None:
            return ""
        try:
            return hashlib.sha256(np.asarray(targets, np.int64).tobytes()).hexdigest()
        except (TypeError, ValueError):
            return ""

    def read(self, ref: Ref) -> RawSample:
        """One sample; see `Source.read`. Whatever the data set raises is that sample's failure."""
        try:
            sample = self._own[ref.place]
            image = _pixels_or_bytes(sample[self.image])
            label = -1 if self.label is None else operator.index(sample[self.label])
        except SampleError:
            raise
        except Exception as error:  # noqa: BLE001 - the code of others
            kind = type(error).__name__
            raise SampleError("unreadable", f"the data set raised {kind} for this sample") from None
        if self.label is not None and not 0 <= label < 1 << 31:
            raise SampleError("unsupported", f"the label is {label}, labels are whole numbers from 0 to 2^31 - 1")
        return RawSample(ref, image, label)

    @property
    def _own(self) -> Any:
        if self._dataset is not None:
            return self._dataset
        if self.pickled is not None:
            state = os.stat(self.pickled)  # noqa: PTH116
            return _unpickled(self.pickled, state.st_ino, state.st_mtime_ns)
        return _imported(self.origin)


def wrap_dataset(dataset: Any, fields: Mapping[str, Any] | None, classes: Sequence[str] = ()) -> PythonDataset:
    """A data set in memory as a source.

    Args:
        dataset: with `len` and `[i]`.
        fields: store field to key or number in a sample: `image`, and `label` where there is one. None takes `image`
            and `label`, or the first and second part of a tuple.
        classes: class names by index; the data set's own when left out.

    Raises:
        UsageError: it is no such data set, or has no such fields.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(f"{type(dataset).__name__} is no map-style data set: it needs len() and [i]")
    image, label = _fields(dataset, fields)
    origin = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    return PythonDataset(origin, image, label, tuple(classes), _dataset=_undecoded(dataset, image))


def load_dataset(name: str) -> PythonDataset:
    """The data set, or the function without arguments that makes it, at `MODULE:ATTRIBUTE`.

    Raises:
        UsageError: there is none.
    """
    dataset = _imported(name)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(f"{name} is {type(dataset).__name__}, no map-style data set: it needs len() and [i]")
    return PythonDataset(name, *_fields(dataset, None))


@lru_cache(maxsize=1)
def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageError(f"--from is 'python:{name}', it must be python:MODULE:ATTRIBUTE")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module beside the user, as `python -m` finds it
    try:
        found = operator.attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--from python:{name}: {error}") from None
    made = found() if isinstance(found, Callable) and not hasattr(found, "__getitem__") else found  # type: ignore[arg-type]
    return _undecoded(made, "image")


@lru_cache(maxsize=1)
def _unpickled(path: str, _inode: int, _mtime_ns: int) -> Any:
    with open(path, "rb") as file:  # noqa: PTH123
        return pickle.load(file)  # noqa: S301 - written by this very build


def _fields(dataset: Any, fields: Mapping[str, Any] | None) -> tuple[Any, Any]:
    """Where image and label lie in a sample."""
    if fields is not None:
        odd = sorted(set(fields) - {"image", "label"})
        if odd or "image" not in fields:
            raise UsageError(f"fields are {dict(fields)!r}: they must name `image`, may name `label`, and nothing else")
        return fields["image"], fields.get("label")
    if not len(dataset):
        return 0, None
    sample = dataset[0]
    if isinstance(sample, Mapping):
        if "image" not in sample:
            raise UsageError(f"samples have {', '.join(map(str, sample))}: name the one that is the image in fields=")
        return "image", "label" if "label" in sample else None
    if isinstance(sample, tuple | list) and sample:
        return 0, 1 if len(sample) > 1 else None
    raise UsageError(f"a sample is {type(sample).__name__}: it must be a mapping, or a tuple of image and label")


def _undecoded(dataset: Any, image: Any) -> Any:
    """A Hugging Face data set that gives the bytes of its images, so that nothing is decoded and encoded again."""
    feature: Any = (getattr(dataset, "features", None) or {}).get(image)
    if type(feature).__name__ != "Image" or not hasattr(dataset, "cast_column"):
        return dataset
    undecoded: Any = type(feature)
    return dataset.cast_column(image, undecoded(decode=False))


def _class_names(dataset: Any, label: Any) -> tuple[str, ...]:
    """Class names that the data set knows itself: `classes` as in torchvision, or a ClassLabel."""
    if label is None:
        return ()
    feature = (getattr(dataset, "features", None) or {}).get(label)
    names = getattr(feature, "names", None) or getattr(dataset, "classes", None) or ()
    return tuple(map(str, names))


def _pixels_or_bytes(image: Any) -> Any:
    """Encoded bytes, or an array (h, w) or (h, w, c)."""
    if isinstance(image, Mapping):  # an undecoded image of Hugging Face
        data = image.get("bytes")
        if data is None:
            with open(image["path"], "rb") as file:  # noqa: PTH123
                data = file.read()
        return data
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if hasattr(image, "detach"):  # a tensor has its channels first
        pixels = np.asarray(image.detach().cpu())
        pixels = pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels
    elif hasattr(image, "getbands"):  # a Pillow image
        pixels = np.asarray(image if image.mode in {"RGB", "L", "I;16"} else image.convert("RGB"))
    else:
        pixels = np.asarray(image)
    if pixels.dtype not in {np.dtype(np.uint8), np.dtype(np.uint16)} or pixels.ndim not in {2, 3}:
        what = f"{pixels.dtype} of {pixels.ndim} dimensions"
        raise SampleError("unsupported", f"the image is {what}, it must be uint8 or uint16 of 2 or 3")
    return np.ascontiguousarray(pixels)
