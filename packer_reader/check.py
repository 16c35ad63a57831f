"""A store against its manifest: every way in which they differ, each with its place.

The quick check compares structure, sizes and hashes of the small files; the full one hashes every file, compares every
field with its CRC-32, decodes it, and reads the container as other tools do.
"""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from packer_reader.decode import decode_field
from packer_reader.errors import DamageError, NotAStoreError, StoreError
from packer_reader.format.array import ARRAY_HEADER
from packer_reader.format.digest import ContentDigest
from packer_reader.format.names import MANIFEST, SHARDS, key_text
from packer_reader.format.record import parse_value
from packer_reader.format.tar import END, member_name, member_size
from packer_reader.stores.ahead import in_order
from packer_reader.stores.files import check_size
from packer_reader.stores.open import bare_store, has_manifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy.typing as npt

    from packer_reader.format.index import Index
    from packer_reader.stores.base import Store

__all__ = ["SKIPPED", "Finding", "check_store"]

_ALWAYS_HASHED = 16 << 20
"""Files up to this size are hashed by the quick check too."""
SKIPPED = "not checked without --full: bytes of files over 16 MiB, CRC-32 and decoding of each field"


@dataclass(frozen=True)
class Finding:
    """One fault."""

    file: str
    """Relative to the store."""
    what: str
    """The fault, in words."""
    key: int | None = None
    """The damaged sample, where it is one."""
    source: str | None = None
    """The file it was made from."""

    def to_json(self, store: Path) -> dict[str, object]:
        """The finding as `--json` prints it."""
        return {"store": str(store), "file": self.file, "what": self.what, "key": self.key, "source": self.source}

    def __str__(self) -> str:
        sample = f" key {key_text(self.key)} (from {self.source!r})" if self.key is not None else ""
        return f"{self.file}:{sample} {self.what}"


def check_store(path: Path, *, full: bool = False, progress: Callable[[int], None] | None = None) -> Iterator[Finding]:
    """Every fault of one complete store.

    Args:
        path: its folder.
        full: read everything.
        progress: hears the number of samples checked since the last call.

    Raises:
        NotAStoreError: there is no manifest to check against.
    """
    if not has_manifest(path):
        raise NotAStoreError(f"{str(path)!r} is no complete store, it has no {MANIFEST}: give a store's folder")
    try:
        manifest = read_manifest(path)
    except StoreError as error:
        yield Finding(MANIFEST, str(error))
        return
    listed = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest.files.items()}
    damaged = set()
    for finding in _files(path, listed, full=full):
        damaged.add(finding.file)
        yield finding
    if SHARDS in damaged:
        return
    try:
        store = bare_store(path, manifest)
    except StoreError as error:
        yield Finding(SHARDS, str(error))
        return
    shards = {name: (size, sha256) for name, size, sha256 in store.shard_files()}
    for finding in _files(path, shards, full=full):
        damaged.add(finding.file)
        yield finding
    known = {MANIFEST, *listed, *shards}
    yield from (Finding(name, "is in the folder and not in the manifest") for name in _strangers(path, known))
    yield from _samples(store, damaged, full=full, progress=progress or (lambda _: None))


def _files(path: Path, listed: dict[str, tuple[int, str]], *, full: bool) -> Iterator[Finding]:
    for name, (size, sha256) in listed.items():
        file = path / name
        try:
            found = file.stat().st_size
        except OSError as error:
            yield Finding(name, f"cannot be read ({error.strerror})")
            continue
        if found != size:
            yield Finding(name, f"has {found} bytes, the manifest says {size}")
        elif full or size <= _ALWAYS_HASHED:
            try:
                with file.open("rb") as data:
                    found_hash = hashlib.file_digest(data, "sha256").hexdigest()
            except OSError as error:
                yield Finding(name, f"cannot be read ({error.strerror})")
                continue
            if found_hash != sha256:
                yield Finding(name, "has other bytes than were written (SHA-256 differs)")


def _strangers(path: Path, known: set[str]) -> list[str]:
    """Files, links and folders that belong to no store, relative to this one."""
    columns = path / "columns"
    found = {p.relative_to(path).as_posix() for p in path.rglob("*") if p != columns or p.is_symlink()}
    return sorted(found - known)


def _samples(store: Store, damaged: set[str], *, full: bool, progress: Callable[[int], None]) -> Iterator[Finding]:
    """Indexes against each other and, in full, fields against their CRC and decoder."""
    unreadable = _unreadable(store, damaged)
    digest, last, whole = ContentDigest(store.manifest.suffixes), -1, True
    for shard in range(store.manifest.shards):
        if store.index_name(shard) in damaged:
            whole = False
            continue
        try:
            index = store.index(shard)
        except StoreError as error:
            yield Finding(store.index_name(shard), str(error))
            whole = False
            continue
        if len(index) and (int(index.key[0]) <= last or bool((np.diff(index.key.astype(np.int64)) <= 0).any())):
            yield Finding(store.index_name(shard), "keys do not rise")
        last = int(index.key[-1]) if len(index) else last
        digest.add(index)
        name = store.shard_name(shard)
        if full and name not in damaged:
            yield from _container(store, shard, index)
        if full and name not in unreadable:
            yield from _fields(store, shard, index, progress)
    if whole:
        yield from _sums(store)
    if whole and digest.hexdigest() != store.manifest.content_digest:
        yield Finding(MANIFEST, "content_digest does not fit the indexes")


def _sums(store: Store) -> Iterator[Finding]:
    """What the manifest sums up, against the indexes."""
    m, stored, records, last = store.manifest, 0, 0, -1
    for shard in range(m.shards):
        index = store.index(shard)
        stored += int(index.size.sum())
        values = (index.key if index.value is None else index.value).astype(np.int64)
        records += int((np.diff(values, prepend=last) != 0).sum())
        last = int(values[-1]) if len(values) else last
    for name, said, found in (("bytes", m.bytes, stored), ("records", m.records, records)):
        if said != found:
            yield Finding(MANIFEST, f"{name} is {said}, the indexes make it {found}")
    if m.shuffled != m.recipe.get("shuffle", m.shuffled):
        yield Finding(MANIFEST, f"shuffled is {m.shuffled}, the recipe says otherwise")


def _fields(store: Store, shard: int, index: Index, progress: Callable[[int], None]) -> Iterator[Finding]:
    first = store.first(shard)
    for row in range(len(index)):
        number = first + row
        try:
            blobs = store.encoded(number)
            for field in store.manifest.fields:
                decode_field(field, blobs[field.suffix])
        except (StoreError, ValueError) as error:
            crc = isinstance(error, DamageError) and error.sample is not None
            what = "is missing, or differs from its CRC-32" if crc else str(error)
            yield Finding(store.shard_name(shard), what, int(index.key[row]), _source(store, number))
        if row % 256 == 255:
            progress(256)
    progress(len(index) % 256)


def _unreadable(store: Store, damaged: set[str]) -> set[str]:
    """Damaged files that are gone or of another size, so that their samples cannot be looked at one by one."""
    sizes = {file: size for file, size, _ in store.shard_files()} if damaged else {}
    sizes |= {file: entry["bytes"] for file, entry in store.manifest.files.items()}
    found = set()
    for name in damaged:
        try:
            check_size(store.path / name, sizes.get(name))
        except StoreError:
            found.add(name)
    return found


def _source(store: Store, number: int) -> str | None:
    try:
        return store.source(number)
    except StoreError:
        return None


def _container(store: Store, shard: int, index: Index) -> Iterator[Finding]:
    """The container as another tool reads it holds the same samples."""
    name = store.shard_name(shard)
    try:
        names = _tar_names(store.path / name) if store.manifest.kind == "tar" else _lmdb_names(store, shard, index)
    except (tarfile.TarError, StoreError, OSError) as error:
        yield Finding(name, f"cannot be read as {store.manifest.kind} ({error})")
        return
    suffixes = store.manifest.suffixes
    expected = [member_name(int(key), suffix) for key in _records(store, index) for suffix in suffixes]
    if names != expected:
        yield Finding(name, "does not hold the members that its index lists, in their order")
    if store.manifest.kind == "tar":
        sizes = _member_sizes(store, index)
        total = sum(member_size(size) for size in sizes.ravel().tolist()) + len(END)
        if total != store.shard_bytes(shard):
            yield Finding(name, "has gaps between its members")


def _records(store: Store, index: Index) -> npt.NDArray[Any]:
    """Keys of the records that an index is about, in order."""
    if not store.manifest.stacked:
        return index.key
    assert index.value is not None
    return index.value[np.flatnonzero(np.diff(index.value, prepend=index.value[:1] + np.uint64(1)))]


def _member_sizes(store: Store, index: Index) -> npt.NDArray[Any]:
    """Bytes of all members of a tar, (fields, records)."""
    sizes = index.size.astype(np.int64)
    if not store.manifest.stacked:
        return sizes
    assert index.value is not None
    starts = np.flatnonzero(np.diff(index.value, prepend=index.value[:1] + np.uint64(1)))
    return np.asarray(np.add.reduceat(sizes, starts, axis=1) + ARRAY_HEADER)


def _tar_names(path: Path) -> list[str]:
    with tarfile.open(path, "r:") as archive:
        return archive.getnames()


def _lmdb_names(store: Store, shard: int, index: Index) -> list[str]:
    """Members that an index run is about; the values at its borders may hold samples of its neighbours as well."""
    names, values = list[str](), index.value
    assert values is not None
    low, high = int(index.key[0]), int(index.key[-1])
    first, last = store.first(shard), None
    for number, record in zip(in_order(store, first, first + len(index)), values.tolist(), strict=True):
        if record == last:
            continue
        last = record
        (value,) = store.holders(np.array([shard]), np.array([number - first]))
        for key, fields in parse_value(record, value).items():
            names += [member_name(key, suffix) for suffix in fields if low <= key <= high or store.manifest.stacked]
    return names
