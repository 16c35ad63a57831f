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
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.sample import RawSample, Ref
from packer.sources.base import Listing
from packer.sources.pixels import pixels_or_bytes
from packer.sources.refs import Common, Places
from packer_reader.errors import PackerError, SampleError, SourceError, UsageError
from packer_reader.format.columns import canonical_json

if TYPE_CHECKING:
    from packer.sources.refs import RefWriter

__all__ = ["PythonDataset", "load_dataset", "wrap_dataset"]

_CHUNK = 1 << 15
"""Refs written at a time."""
_ANYTHING = (Exception, SystemExit, GeneratorExit)
"""What the code of others may raise; only an interrupt is the user's."""
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
    classes: tuple[str, ...] = ()
    """Class names by index, as they are stored; empty without names."""
    renumbered: tuple[int, ...] = ()
    """The stored label by the data set's; empty where they are the same."""
    pickled: str | None = None
    """File of the pickled data set; None when workers import it."""
    fingerprint: str = ""
    """What a change of the data set changes."""
    type: str = "python"
    prefixes: tuple[bytes, ...] = (b"",)
    _dataset: Any = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_dataset": None}

    def stored_at(self, path: Path) -> PythonDataset:
        """The same with the data set pickled into a file, so that it does not travel with every task.

        One that cannot be pickled is left as it is; it can be read in this process, and never be resumed.
        """
        if self._dataset is None:
            return self
        try:
            with path.open("wb") as file:
                pickle.dump(self._dataset, file)
            with path.open("rb") as file:
                fingerprint = hashlib.file_digest(file, "sha256").hexdigest()
        except _ANYTHING:
            path.unlink(missing_ok=True)
            return replace(self, fingerprint=os.urandom(16).hex())
        return replace(self, pickled=str(path), fingerprint=getattr(self._dataset, "_fingerprint", fingerprint))

    def check_sendable(self) -> None:
        """See that worker processes can have it.

        Raises:
            SourceError: it could not be pickled.
        """
        if self._dataset is not None and self.pickled is None:
            raise SourceError(f"{self.origin} cannot be pickled for worker processes: use --runner serial")

    def scan(self, refs: RefWriter) -> Listing:
        """List the samples by number; see `Source.scan`."""
        count = _foreign(self.origin, lambda: len(self._own))
        if not count:
            raise SourceError(f"{self.origin} has no samples")
        for start in range(0, count, _CHUNK):
            numbers = range(start, min(count, start + _CHUNK))
            nothing = [0] * len(numbers)
            refs.add([b"%d" % number for number in numbers], Places(nothing, nothing), Common(b"row "))
        shape = [self.origin, self.fingerprint, repr(self.image), repr(self.label), list(self.renumbered)]
        return Listing(
            type=self.type,
            reason=self.origin,
            classes=self.classes or None,
            labelled=self.label is not None,
            splits=(),
            found=count,
            bytes=0,
            digest=refs.digest(canonical_json(shape)),
            suffixes=Counter(self._suffix(number) for number in range(0, count, -(-count // _LOOKED_AT))),
            ignored=Counter(),
        )

    def read(self, ref: Ref) -> RawSample:
        """One sample; see `Source.read`. Whatever the data set raises is that sample's failure."""
        try:
            sample = self._own[ref.place]
            image, label = sample[self.image], -1 if self.label is None else sample[self.label]
            pixels = pixels_or_bytes(image)
        except SampleError:
            raise
        except _ANYTHING as error:
            kind = type(error).__name__
            raise SampleError("unreadable", f"the data set raised {kind} for this sample") from None
        return RawSample(ref, pixels, -1 if self.label is None else self._number(label))

    def _number(self, label: Any) -> int:
        try:
            number = operator.index(label)
        except TypeError:
            kind = type(label).__name__
            raise SampleError("unsupported", f"the label is of type {kind}, labels are whole numbers") from None
        if not 0 <= number < 1 << 31:
            raise SampleError("unsupported", f"the label is {number}, labels are whole numbers from 0 to 2^31 - 1")
        if self.renumbered and number >= len(self.renumbered):
            raise SampleError("unsupported", f"the label is {number}, there are {len(self.renumbered)} classes")
        return self.renumbered[number] if self.renumbered else number

    def _suffix(self, number: int) -> str:
        """What a sample's image would be called as a file: JPEG and WebP stay what they are, all else is lossless."""
        try:
            image = pixels_or_bytes(self._own[number][self.image])
        except _ANYTHING:
            return ".png"  # it will be that sample's failure
        head = image[:12] if isinstance(image, bytes) else b""
        return ".jpg" if head[:2] == b"\xff\xd8" else ".webp" if head[8:12] == b"WEBP" else ".png"

    @property
    def _own(self) -> Any:
        if self._dataset is not None:
            return self._dataset
        if self.pickled is not None:
            state = os.stat(self.pickled)  # noqa: PTH116
            return _unpickled(self.pickled, state.st_ino, state.st_mtime_ns)
        return _imported(self.origin)


def wrap_dataset(
    dataset: Any, fields: Mapping[str, Any] | None, names: Sequence[str] = (), known: Sequence[str] = ()
) -> PythonDataset:
    """A data set in memory as a source.

    Args:
        dataset: with `len` and `[i]`.
        fields: store field to key or number in a sample: `image`, and `label` where there is one. None takes `image`
            and `label`, or the first and second part of a tuple.
        names: class names by label; the data set's own when left out.
        known: class names that keep their index; others come behind them.

    Raises:
        UsageError: it is no such data set, or has no such fields.
    """
    origin = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    return _described(PythonDataset(origin, None, None, classes=tuple(names), _dataset=dataset), fields, tuple(known))


def load_dataset(name: str, known: Sequence[str] = ()) -> PythonDataset:
    """The data set, or the function or class that makes it without arguments, at `MODULE:ATTRIBUTE`.

    Raises:
        UsageError: there is none.
    """
    _imported(name)
    source = PythonDataset(name, None, None, fingerprint=_source_hash(name.partition(":")[0]))
    return _described(source, None, tuple(known))


def _described(source: PythonDataset, fields: Mapping[str, Any] | None, known: tuple[str, ...]) -> PythonDataset:
    """The source with its fields and classes."""
    dataset = source._own
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(f"{source.origin} is no map-style data set: it needs len() and [i]")
    image, label = _foreign(source.origin, lambda: _fields(dataset, fields))
    own = source.classes or _foreign(source.origin, lambda: _class_names(dataset, label))
    classes = (*known, *(name for name in own if name not in known))
    renumbered = tuple(map(classes.index, own)) if known and own else ()
    kept = None if source._dataset is None else _undecoded(dataset, image)
    return replace(source, image=image, label=label, classes=classes, renumbered=renumbered, _dataset=kept)


def _foreign(what: str, call: Callable[[], Any]) -> Any:
    """Call the code of others before the build: whatever it raises is one sentence.

    Raises:
        UsageError: it raised something.
    """
    try:
        return call()
    except PackerError:
        raise
    except _ANYTHING as error:
        raise UsageError(f"{what} raised {type(error).__name__}: {error}") from None


def _source_hash(module: str) -> str:
    """SHA-256 of a module's file; empty where it has none."""
    path = getattr(sys.modules.get(module), "__file__", None)
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""
    except OSError:
        return ""


@lru_cache(maxsize=1)
def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageError(f"--from is 'python:{name}', it must be python:MODULE:ATTRIBUTE")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module beside the user, as `python -m` finds it
    found = _foreign(f"--from python:{name}", lambda: operator.attrgetter(attribute)(importlib.import_module(module)))
    makes = isinstance(found, type) or (callable(found) and not hasattr(found, "__getitem__"))
    made = _foreign(f"--from python:{name}", found) if makes else found
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
            raise UsageError(
                f"samples have {', '.join(map(str, sample))}, none of them `image`: name it in packer.write's fields="
            )
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
