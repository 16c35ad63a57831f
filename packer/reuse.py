"""An earlier store of the same recipe, to copy from what has not changed: `--reuse`.

The new store is byte for byte what a full build makes. A sample is copied when a source of its name had the same size
and modification time, or, where only the time differs, the same content. What failed before is not in the store, and so
is tried again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from packer.stored import Facts, StoredSample, public_name, with_label
from packer_reader.errors import DamageError, NotAStoreError, StoreError, UsageError
from packer_reader.format.names import column_file
from packer_reader.stores.open import bare_store, read_manifest, store_folders

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from packer.recipe import Recipe
    from packer.sample import Ref
    from packer.sources.refs import RefTable
    from packer.stored import Opened
    from packer.unit import SplitJob
    from packer_reader.format.manifest import Manifest
    from packer_reader.stores.base import Store

__all__ = ["Copier", "MadeBy", "Reuse", "plan_reuse"]

_IMAGE = ("resize", "sizes", "fit", "upscale", "gray", "bits", "exact", "encode", "quality", "max_pixels")
"""What of a recipe shapes the bytes of an image; all else may differ."""
_COPIED = ("height", "width", "moments", "source_codec", "source_size", "source_hash")
"""Columns of a sample that are copied with its image."""


@dataclass(frozen=True)
class Reuse:
    """What a worker needs to know to copy samples; small, it travels with every unit."""

    stores: tuple[str, ...]
    table: Path
    """Per ref, i64: the sample's number over all stores; -1 for none; -2 - number where the content has to be
    compared."""

    def open(self) -> Copier:
        """Open stores and table, or take them as the unit before left them."""
        state = self.table.stat()
        return _copier(self, state.st_ino, state.st_mtime_ns)


@lru_cache(maxsize=4)
def _copier(reuse: Reuse, _inode: int, _mtime_ns: int) -> Copier:
    """By the table's file too, since a later build has the same paths."""
    stores = [bare_store(Path(path), read_manifest(Path(path))) for path in reuse.stores]
    return Copier(stores, np.memmap(reuse.table, "<i8", "r") if reuse.table.stat().st_size else np.empty(0, "<i8"))


class Copier:
    """Copies samples out of earlier stores."""

    def __init__(self, stores: Sequence[Store], table: npt.NDArray[np.int64]) -> None:
        """Take the stores and the table of a `Reuse`."""
        self._stores, self._table = stores, table

    def unchanged(self, ref: Ref, job: SplitJob) -> StoredSample | None:
        """A copy of what was made of the same file."""
        number = int(self._table[ref.place])
        return self._copy(number, ref, ref.label, job) if number >= 0 else None

    def same_content(self, opened: Opened, job: SplitJob) -> StoredSample | None:
        """A copy of what was made of a file of this name with the same content."""
        raw = opened.raw
        number = -2 - int(self._table[raw.ref.place])
        if number < 0:
            return None
        store, inside = self._find(number)
        if store.columns.numbers("source_hash")[inside].tobytes() != opened.digest:
            return None
        return self._copy(number, raw.ref, raw.label, job)

    def _find(self, number: int) -> tuple[Store, int]:
        for store in self._stores:
            if number < len(store):
                return store, number
            number -= len(store)
        raise AssertionError(number)

    def _copy(self, number: int, ref: Ref, label: int, job: SplitJob) -> StoredSample | None:
        store, inside = self._find(number)
        try:
            image = bytes(store.read(np.array([inside]), [0])[0][0])
        except StoreError:
            return None  # damaged: converted again
        height, width, moments, codec, source_size, source_hash = (
            store.columns.numbers(name)[inside] for name in _COPIED
        )
        size = int(height), int(width)
        sums = tuple(np.frombuffer(moments.tobytes(), "<u8").tolist())
        facts = Facts(size, sums, int(codec), int(source_size), source_hash.tobytes(), label)
        return StoredSample(with_label(job, image, size, ref.name, label), facts, copied=True)


@dataclass(frozen=True)
class MadeBy:
    """What decides the bytes of an image, beside its source."""

    recipe: Recipe
    codec: str
    versions: Mapping[str, str]
    """Of the libraries."""


def plan_reuse(path: str, made: MadeBy, refs: RefTable, table: Path) -> Reuse:
    """Find out what can be copied.

    Args:
        path: an earlier store, or a folder of stores (splits, sizes).
        made: how the new store is made.
        refs: the new listing.
        table: the file to write, see `Reuse.table`.

    Raises:
        UsageError: nothing there was made by such a recipe; the difference is named.
    """
    try:
        folders = store_folders(Path(path))
    except NotAStoreError as error:
        raise NotAStoreError(f"--reuse: {error}") from None
    found = {folder: read_manifest(folder) for folder in folders}
    differences = {folder: _differences(manifest, made) for folder, manifest in found.items()}
    fitting = [folder for folder in folders if not differences[folder]]
    if not fitting:
        least = min(differences.values(), key=len)
        raise UsageError(
            f"--reuse {path!r} was made otherwise: {'; '.join(least)}. Use the same options, or convert anew"
        )
    for folder in fitting:
        _check_columns(folder, found[folder])
    places = _match(refs, [bare_store(folder, found[folder]) for folder in fitting])
    places.astype("<i8").tofile(table)
    return Reuse(tuple(str(folder.absolute()) for folder in fitting), table)


def _differences(manifest: Manifest, made: MadeBy) -> list[str]:
    """Why images of a store are not what this recipe makes of the same files."""
    asked, before, versions = made.recipe.to_json(), manifest.recipe, made.versions
    pairs = [(name, before.get(name), asked[name]) for name in _IMAGE]
    pairs.append(("codec", manifest.fields[0].codec, made.codec))
    libraries = sorted((manifest.versions.keys() | versions.keys()) - {"packer-data", "lmdb"})
    pairs += [(name, manifest.versions.get(name), versions.get(name)) for name in libraries]
    found = [f"{name} was {old!r}, is {new!r}" for name, old, new in pairs if old != new]
    if before.get("source_names") == "none":
        found.append("it was built with --source-names none, so nothing tells which sample is which")
    return found


def _check_columns(folder: Path, manifest: Manifest) -> None:
    """See that the columns are whole: encoded fields are checked as they are copied, columns have one hash each.

    Raises:
        DamageError: one is not.
    """
    for name in (*_COPIED, "source_mtime_ns", "name"):
        listed = manifest.files.get(column_file(name), {})
        with (folder / column_file(name)).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != listed.get("sha256"):
                raise DamageError(f"--reuse {str(folder)!r}: column {name!r} is damaged: run `packer verify {folder}`")


def _match(refs: RefTable, stores: list[Store]) -> npt.NDArray[np.int64]:
    """For each ref the place of its sample, see `Reuse.table`.

    Members of archives have the archive's time, so that their content is always compared. Names are compared by 64 bits
    of their hash: beside them size and time, or the content, have to agree as well.
    """
    hashes, sizes, times = [], [], []
    for store in stores:
        hashes.append(_hashes(store.columns.strings("name"), "keep"))
        sizes.append(store.columns.numbers("source_size"))
        times.append(store.columns.numbers("source_mtime_ns"))
    modes = {store.manifest.recipe.get("source_names", "keep") for store in stores}
    places = np.full(len(refs), -1, np.int64)
    if not len(refs):
        return places
    old, size, time = np.concatenate(hashes), np.concatenate(sizes), np.concatenate(times)
    order = np.argsort(old, kind="stable")
    for mode in sorted(modes):
        mine = _hashes(refs.names(), mode)
        at = np.searchsorted(old[order], mine).clip(max=len(order) - 1)
        number = order[at]
        known = old[number] == mine
        same = known & (size[number] == refs.sizes) & (time[number] == refs.mtimes) & refs.files & (refs.mtimes != 0)
        places[known] = -2 - number[known]
        places[same] = number[same]
    return places


def _hashes(names: Iterable[str], mode: str) -> npt.NDArray[np.uint64]:
    def number(name: str) -> int:
        text = public_name(name, mode).encode("utf-8", "surrogateescape")
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

    return np.fromiter(map(number, names), np.uint64)
