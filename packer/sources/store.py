"""Stores of ours as a source: to shuffle anew, cut other shards, change the container, resize or split.

Where the recipe leaves images as they are, their bytes are copied, checked by CRC, and not decoded.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
import numpy.typing as npt

from packer.fields import PICTURES, Extra, ExtraKind
from packer.sample import RawSample, Ready, Ref
from packer.sources.base import Listing
from packer.sources.refs import Common, Places, prefixes_of
from packer_reader.decode import decode_field
from packer_reader.errors import DamageError, SampleError, SourceError, UsageError
from packer_reader.format.manifest import manifest_bytes
from packer_reader.stores.files import folder_identity
from packer_reader.stores.open import bare_store, read_manifest, store_folders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer.recipe import Recipe
    from packer.sources.refs import RefWriter
    from packer_reader.format.fields import FieldSpec
    from packer_reader.format.manifest import Manifest
    from packer_reader.stores.base import Store

__all__ = ["Stores", "open_stores"]

_CHUNK = 1 << 15
_MOST = 64 << 20
"""Bytes of a unit that are read ahead."""


@dataclass(frozen=True)
class Stores:
    """One or several stores with the same fields and classes."""

    folders: tuple[str, ...]
    """Of complete stores; splits are stores of their own."""
    type: str = "store"

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """See `Source.prefixes`."""
        return prefixes_of(self.folders)

    def scan(self, refs: RefWriter) -> Listing:
        """List the samples store by store, in stored order; see `Source.scan`."""
        _HELD.clear()
        manifests = [read_manifest(Path(folder)) for folder in self.folders]
        first = manifests[0]
        if first.fields[0].kind != "image":
            raise SourceError(f"{self.folders[0]!r} is a store of {first.fields[0].kind}: build from its source again")
        for folder, other in zip(self.folders[1:], manifests[1:], strict=True):
            if _kinds(other) != _kinds(first) or other.classes != first.classes:
                raise SourceError(
                    f"{self.folders[0]!r} and {folder!r} have other fields or classes: build them one by one"
                )
        splits = tuple(dict.fromkeys(manifest.split for manifest in manifests if manifest.split))
        whole = all(manifest.split for manifest in manifests)
        for number, folder in enumerate(self.folders):
            store, manifest = _opened(folder), manifests[number]
            refs.note(manifest_bytes(manifest))
            split = splits.index(manifest.split) if whole and manifest.split else -1
            _list(store, refs, Common(source=number, split=split))
        picture = first.fields[0]
        labelled = any(field.kind == "label" for field in first.fields)
        return Listing(
            type=self.type,
            reason="it has a manifest of packer's",
            classes=first.classes,
            labelled=labelled,
            splits=splits if whole else (),
            found=refs.count,
            bytes=refs.bytes,
            digest=refs.digest(b""),
            suffixes=Counter({f".{picture.codec}": refs.count}),
            ignored=Counter(),
            extras=tuple(_extra(field) for field in first.fields[1:] if field.kind != "label"),
        )

    def check(self, recipe: Recipe) -> None:
        """See that masks keep their meaning.

        Raises:
            UsageError: they were built with another ignore label.
        """
        for folder in self.folders:
            manifest = read_manifest(Path(folder))
            label = manifest.recipe.get("ignore_label", 255)
            if label != recipe.ignore_label and any(field.kind == "mask" for field in manifest.fields):
                raise UsageError(f"the masks of {folder!r} were built with --ignore-label {label}: give it again")

    def expect(self, refs: Sequence[Ref]) -> None:
        """Read a unit's samples at once, which takes half of the time; see `Expecting`."""
        _HELD.clear()
        for number in {ref.source for ref in refs}:
            folder = self.folders[number]
            numbers = np.array([ref.offset for ref in refs if ref.source == number])
            store = _opened(folder)
            if int(store.columns.numbers("bytes")[numbers].sum()) > _MOST:
                continue  # large samples gain little, and would fill the memory
            try:
                _HELD[folder] = _read(store, numbers)
            except DamageError:
                continue  # one by one, which says whose bytes are damaged

    def read(self, ref: Ref) -> RawSample:
        """One sample; see `Source.read`."""
        folder = self.folders[ref.source]
        held = _HELD.get(folder, {}).get(ref.offset)
        if held is None:
            try:
                held = _read(_opened(folder), np.array([ref.offset]))[ref.offset]
            except DamageError:
                raise SampleError("corrupt", "its bytes in the store are not what was written") from None
        fields, blobs, ready = held
        values = {
            field.name: bytes(blob) if field.kind in PICTURES and field.codec != "npy" else decode_field(field, blob)
            for field, blob in zip(fields[1:], blobs[1:], strict=True)
            if field.kind != "label"
        }
        image = decode_field(fields[0], blobs[0]) if fields[0].codec == "npy" else blobs[0]
        return RawSample(ref, image, ref.label, values, ready)


def open_stores(paths: Sequence[str]) -> Stores:
    """The stores at some paths, each a store or a folder of splits.

    Raises:
        SourceError: a folder holds the same samples at several sizes.
    """
    found: list[Path] = []
    for path in paths:
        folders = store_folders(Path(path))
        splits = [read_manifest(folder).split for folder in folders]
        if len(set(splits)) < len(splits):
            names = ", ".join(str(folder) for folder in folders)
            raise SourceError(f"source {path!r} holds the same samples at several sizes ({names}): name one")
        found += folders
    return Stores(tuple(map(str, found)))


def _opened(folder: str) -> Store:
    return _store(folder, *folder_identity(Path(folder)))


@lru_cache(maxsize=4)
def _store(folder: str, _device: int, _inode: int) -> Store:
    """By the folder's identity too, since another store may have taken its place. A store has some 20 files open."""
    return bare_store(Path(folder), read_manifest(Path(folder)))


def _kinds(manifest: Manifest) -> list[tuple[str, str, str]]:
    return [(field.name, field.kind, field.suffix) for field in manifest.fields]


def _extra(field: FieldSpec) -> Extra:
    if field.kind not in get_args(ExtraKind):
        raise SourceError(f"field {field.name!r} is of kind {field.kind!r}, which cannot be written yet")
    kind: ExtraKind = field.kind  # type: ignore[assignment]
    return Extra(field.name, kind, field.dtype if kind == "number" else "")


def _list(store: Store, refs: RefWriter, common: Common) -> None:
    names, columns = store.columns.strings("name"), store.columns
    sizes, mtimes = columns.numbers("source_size"), columns.numbers("source_mtime_ns")
    labels = columns.numbers("label") if "label" in columns else None
    for start in range(0, len(store), _CHUNK):
        numbers = range(start, min(start + _CHUNK, len(store)))
        rows = slice(numbers.start, numbers.stop)
        places = Places(
            sizes[rows].tolist(),
            mtimes[rows].tolist(),
            numbers,
            labels=labels[rows].tolist() if labels is not None else [],
        )
        refs.add([os.fsencode(names[number]) for number in numbers], places, common)


Held = dict[int, tuple[tuple["FieldSpec", ...], tuple[memoryview, ...], Ready]]
_HELD: dict[str, Held] = {}
"""Of the unit that is being converted: by store and sample number the fields, their bytes as views of the store, and
what is known of them."""


def _read(store: Store, numbers: npt.NDArray[np.int64]) -> Held:
    """Samples of a store, checked by CRC.

    Raises:
        DamageError: one is damaged.
    """
    fields, columns, recipe = store.manifest.fields, store.columns, store.manifest.recipe
    spans = store.checked(numbers, range(len(fields)))
    rows = list(zip(*spans.views, strict=True))
    known = [columns.numbers(name)[numbers].tolist() for name in ("height", "width", "source_codec", "source_size")]
    moments = np.ascontiguousarray(columns.numbers("moments")).view("<u8")[numbers].tolist()
    hashes = columns.numbers("source_hash")[numbers]
    others = [place for place, field in enumerate(fields) if place and field.kind != "label"]
    named = [name for place in others for name, _ in _extra(fields[place]).columns]
    values = list(zip(*(columns.numbers(name)[numbers].tolist() for name in named), strict=True)) or [()] * len(numbers)
    found: Held = {}
    for place, (number, row) in enumerate(zip(numbers.tolist(), rows, strict=True)):
        height, width, codec, size = (column[place] for column in known)
        found[number] = (
            fields,
            row,
            Ready(
                codec=fields[0].codec,
                channels=fields[0].maximum[-1],
                dtype=fields[0].dtype,
                dropped=(recipe.get("min_box_size", 1.0), recipe.get("min_visibility", 0.0)),
                image=row[0],
                crc=spans.crcs[0][place],
                size=(height, width),
                moments=tuple(moments[place]),
                source_codec=codec,
                source_size=size,
                source_hash=hashes[place].tobytes(),
                blobs=tuple(row[other] for other in others),
                columns=values[place],
            ),
        )
    return found
