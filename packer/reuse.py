"""An earlier store of the same recipe, to copy from what has not changed: `--reuse`.

The new store is byte for byte what a full build makes. A sample is copied when a source of its name had the same size
and modification time, or, where only the time differs, the same content. What failed before is not in the store, and so
is tried again.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer.recipe import Recipe
from packer.sources.refs import map_array
from packer.stored import Facts, StoredSample, public_name, with_label
from packer_reader.errors import DamageError, NotAStoreError, SampleError, StoreError, UsageError
from packer_reader.format.names import column_file
from packer_reader.stores.open import bare_store, read_manifest, store_folders

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from packer.sample import Ref
    from packer.sources.refs import RefTable
    from packer.stored import Opened
    from packer.unit import SplitJob
    from packer_reader.format.manifest import Manifest
    from packer_reader.stores.base import Store

Ints = npt.NDArray[np.int64]

__all__ = ["Copier", "MadeBy", "Reuse", "plan_reuse"]

_IMAGE = ("resize", "sizes", "fit", "upscale", "gray", "bits", "exact", "encode", "quality", "roi", "max_pixels")
"""What of a recipe shapes the bytes of an image; all else may differ."""
_NUMBERS = ("height", "width", "source_codec", "source_size")
"""Columns of plain numbers that are copied with an image, beside `moments` and `source_hash`."""


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
    return Copier(stores, map_array(reuse.table, "<i8"))


@dataclass(frozen=True)
class _Copied:
    """The columns of a store that are copied with its images."""

    numbers: tuple[npt.NDArray[Any], ...]
    """height, width, source_codec, source_size."""
    moments: npt.NDArray[np.uint64]
    hashes: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, store: Store) -> _Copied:
        """Map them."""
        columns = store.columns
        moments = np.ascontiguousarray(columns.numbers("moments")).view("<u8")
        return cls(tuple(map(columns.numbers, _NUMBERS)), moments, columns.numbers("source_hash"))


class Copier:
    """Copies samples out of earlier stores."""

    def __init__(self, stores: Sequence[Store], table: npt.NDArray[np.int64]) -> None:
        """Take the stores and the table of a `Reuse`."""
        self._stores, self._table = [(store, _Copied.of(store)) for store in stores], table

    def unchanged(self, refs: Sequence[Ref], job: SplitJob) -> list[StoredSample | None]:
        """For each ref a copy of what was made of the same file; None where there is none, or it is damaged.

        Taken for a unit at once, since looking a sample up costs as much as copying it. Images are views of the store.
        """
        numbers = self._table[[ref.place for ref in refs]]
        found: list[StoredSample | None] = [None] * len(refs)
        first = 0
        for store, columns in self._stores:
            places = np.flatnonzero((numbers >= first) & (numbers < first + len(store)))
            inside = numbers[places] - first
            chosen = [refs[place] for place in places.tolist()]
            copies = _copies(store, columns, inside, chosen, [ref.label for ref in chosen], job=job)
            for place, copy in zip(places.tolist(), copies, strict=True):
                found[place] = copy
            first += len(store)
        return found

    def announce(self, refs: Ints) -> None:
        """Let the system begin to fetch what `unchanged` will want for refs, by their numbers: int64 (n,).

        An old store has mostly left the memory by now, and is slow where a disk is waited for once per unit.
        """
        numbers = np.sort(self._table[refs])
        first = 0
        for store, _ in self._stores:
            inside = numbers[(numbers >= first) & (numbers < first + len(store))] - first
            with suppress(StoreError):  # whoever reads them says so
                store.announce(inside, [0])
            first += len(store)

    def same_content(self, opened: Opened, job: SplitJob) -> StoredSample | None:
        """A copy of what was made of a file of this name with the same content."""
        raw = opened.raw
        number = -2 - int(self._table[raw.ref.place])
        for store, columns in self._stores:
            if 0 <= number < len(store):
                if columns.hashes[number].tobytes() != opened.digest:
                    return None
                return _copies(store, columns, np.array([number]), [raw.ref], [raw.label], job=job)[0]
            number -= len(store)
        return None


def _copies(
    store: Store, columns: _Copied, numbers: Ints, refs: Sequence[Ref], labels: Sequence[int], *, job: SplitJob
) -> list[StoredSample | None]:
    """Copies of samples, each with its name and label of today; None for one that cannot be copied."""
    height, width, codec, source_size = (column[numbers].tolist() for column in columns.numbers)
    moments = map(tuple, columns.moments[numbers].tolist())
    hashes = map(bytes, columns.hashes[numbers])
    sizes = zip(height, width, strict=True)
    facts = map(Facts, sizes, moments, codec, source_size, hashes, labels)
    images = _images(store, numbers)
    return [_copy(job, image, ref.name, fact) for image, ref, fact in zip(images, refs, facts, strict=True)]


def _copy(job: SplitJob, found: tuple[Any, int] | None, name: str, facts: Facts) -> StoredSample | None:
    if found is None:
        return None
    image, crc = found
    try:
        return StoredSample(with_label(job, image, facts.size, name, facts.label), facts, copied=True, crc=crc)
    except SampleError:
        return None  # converting it says why


def _images(store: Store, numbers: Ints) -> list[tuple[Any, int] | None]:
    """Encoded images, checked by CRC, and that; None for one that is damaged."""
    try:
        spans = store.checked(numbers, [0])
        return list(zip(spans.views[0], spans.crcs[0], strict=True))
    except StoreError:
        return [None] if len(numbers) == 1 else [_images(store, one)[0] for one in numbers[:, None]]


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
    before = {**Recipe().to_json(), **manifest.recipe}  # an older packer's recipe has fewer entries
    asked, versions = made.recipe.to_json(), made.versions
    pairs = [(name, before[name], asked[name]) for name in _IMAGE]
    pairs.append(("codec", manifest.fields[0].codec, made.codec))
    libraries = sorted((manifest.versions.keys() | versions.keys()) - {"packer-data", "lmdb"})
    pairs += [(name, manifest.versions.get(name), versions.get(name)) for name in libraries]
    found = [f"{name} was {old!r}, is {new!r}" for name, old, new in pairs if old != new]
    if manifest.source["type"] == "store":
        found.append("it was made from another store, so its recipe is not all that was done to the files")
    if before.get("source_names") == "none":
        found.append("it was built with --source-names none, so nothing tells which sample is which")
    return found


def _check_columns(folder: Path, manifest: Manifest) -> None:
    """See that the columns are whole: encoded fields are checked as they are copied, columns have one hash each.

    Raises:
        DamageError: one is not.
    """
    for name in (*_NUMBERS, "moments", "source_hash", "source_mtime_ns", "name"):
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
