"""An opened store: manifest, columns, and the encoded fields of any sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer_reader.arguments import in_range
from packer_reader.errors import DamageError, FormatError, NotFoundError
from packer_reader.format.columns import COLUMN_MAGIC, parse_frame
from packer_reader.format.crc import crc32
from packer_reader.format.index import Index, parse_index
from packer_reader.format.names import SHARDS
from packer_reader.stores.ahead import OneByOne, announce
from packer_reader.stores.columns import Columns
from packer_reader.stores.files import Recent, folder_identity, map_file
from packer_reader.stores.spans import spans_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from packer_reader.format.manifest import Manifest
    from packer_reader.stores.spans import Spans

__all__ = ["Store"]

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


class Store:
    """Samples by number, `0..len-1`; made by `packer_reader.open`.

    Holds no handle that a fork or pickle could break.
    """

    slack = 0
    """Bytes by which `starts` may be wrong."""

    def __init__(self, path: Path, manifest: Manifest, identity: tuple[int, int] | None = None) -> None:
        """Take a complete store's folder and its parsed manifest.

        Args:
            path: the folder.
            manifest: what its manifest says.
            identity: device and inode that the folder had when it was opened; None looks.
        """
        self.path, self.manifest = path, manifest
        self._identity = identity or folder_identity(path)
        self.columns = Columns(self)
        self.table = self._load_table()
        """Per shard: samples, sizes and hashes."""
        self._ends = np.cumsum(self.table["samples"].astype(np.int64))
        self._indexes = Recent(self._map_index)
        self._one_by_one = OneByOne()
        counted = self.first(manifest.shards)
        if counted != manifest.samples:
            raise FormatError(SHARDS, [f"counts {counted} samples, the manifest {manifest.samples}"])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.manifest, self._identity)

    def __len__(self) -> int:
        return self.manifest.samples

    def __repr__(self) -> str:
        fields = ", ".join(f"{f.name}: {f.codec}" for f in self.manifest.fields)
        classes = f", {len(self.manifest.classes)} classes" if self.manifest.classes is not None else ""
        return f"<{self.manifest.kind} store {str(self.path)!r}: {len(self):,} samples ({fields}){classes}>"

    def __getitem__(self, number: int) -> dict[str, Any]:
        """One sample, decoded: field name to numpy array, int, str, or JSON value."""
        from packer_reader.decode import decode_field  # noqa: PLC0415 - codecs load when a sample is decoded

        blobs = self.encoded(number)
        return {field.name: decode_field(field, blobs[field.suffix]) for field in self.manifest.fields}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[number] for number in range(len(self)))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by index; None without classes."""
        return self.manifest.classes

    @property
    def container_sizes(self) -> Ints:
        """Samples per container, in order: what an epoch order is made from."""
        return self.table["samples"].astype(np.int64)

    def encoded(self, number: int) -> dict[str, bytes]:
        """The stored bytes of one sample by suffix, checked by CRC.

        Raises:
            NotFoundError: there is no such sample.
            DamageError: bytes differ from what was written.
        """
        fields = range(len(self.manifest.fields))
        (blobs,) = self.read(np.array([self.number(number)]), fields)
        return {f.suffix: bytes(blob) for f, blob in zip(self.manifest.fields, blobs, strict=True)}

    def number(self, number: int) -> int:
        """A sample number in range; negative ones count from the end.

        Raises:
            NotFoundError: there is no such sample.
        """
        return in_range(number, len(self))

    def find(self, name: str) -> int:
        """The number of the sample that was made from a source file.

        Raises:
            NotFoundError: there is none of this name.
        """
        found = self.columns.strings("name").find(name)
        if found is None:
            raise NotFoundError(
                f"no sample was made from {name!r}: names are relative to the source, and errors.jsonl "
                "lists what was skipped"
            )
        return found

    def source(self, number: int) -> str:
        """The name of the source file that a sample was made from, relative to the source."""
        return self.columns.strings("name")[self.number(number)]

    def read(self, numbers: Ints, fields: Sequence[int]) -> list[tuple[memoryview, ...]]:
        """Encoded fields of several samples, checked by CRC.

        Args:
            numbers: sample numbers, int64 (n,), in range.
            fields: places in `manifest.fields`.

        Returns:
            For each sample the views of its fields; they stay valid while the store does.

        Raises:
            DamageError: naming shard, key and source file.
        """
        spans = self.checked(numbers, fields)
        return list(zip(*spans.views, strict=True)) if fields else [()] * len(numbers)

    def checked(self, numbers: Ints, fields: Sequence[int]) -> Spans:
        """The same by field, with the CRC-32 that each has.

        Raises:
            DamageError: naming shard, key and source file.
        """
        if fields and len(numbers) > 1:
            self.announce(numbers, fields)
        elif fields and len(numbers):  # to ask for a single one takes as long as to decode it
            self._one_by_one.before(self, int(numbers[0]), fields)
        spans = self.spans(numbers, fields)
        for views, crcs in zip(spans.views, spans.crcs, strict=True):
            for number, view, crc in zip(numbers.tolist(), views, crcs, strict=True):
                if crc32(view) != crc:
                    raise self.damaged(number)
        return spans

    def spans(self, numbers: Ints, fields: Sequence[int]) -> Spans:
        """Encoded fields of several samples and their CRC-32, not compared yet: whoever decodes does that.

        Args:
            numbers: sample numbers, int64 (n,), in range.
            fields: places in `manifest.fields`.

        Raises:
            DamageError: a shard is gone or cut, naming it.
        """
        return spans_of(self, numbers, fields)

    def holders(self, shards: Ints, rows: Ints) -> list[memoryview]:
        """For each sample, by shard and row, int64 (n,), the bytes that its offsets count in.

        Raises:
            StoreError: they cannot be read.
        """
        raise NotImplementedError

    def addresses(self, shard: int, rows: Ints) -> tuple[Any, Ints, Ints]:
        """For rows of a shard, int64 (n,), the addresses in this process that their offsets count from.

        Returns:
            What keeps the memory mapped while it is held; addresses, and the bytes that lie there, int64 (n,) each.

        Raises:
            StoreError: it cannot be read.
        """
        raise NotImplementedError

    def starts(self, shard: int, rows: Ints) -> tuple[Any, Ints]:
        """About where in this process's memory the offsets of rows of a shard, int64 (n,), count from.

        Returns:
            What keeps the memory mapped while it is held; addresses, int64 (n,).

        Raises:
            StoreError: it cannot be read.
        """
        raise NotImplementedError

    def shards_of(self, numbers: Ints) -> Ints:
        """The shard of each sample, int64 (n,)."""
        return np.searchsorted(self._ends, numbers, "right")

    def announce(self, numbers: Ints, fields: Sequence[int]) -> bool:
        """Let the system begin to fetch what `read` of the same will want; see `ahead.announce`."""
        return announce(self, numbers, fields)

    def first(self, shard: int) -> int:
        """The number of a shard's first sample."""
        return int(self._ends[shard - 1]) if shard else 0

    def index(self, shard: int) -> Index:
        """The index of a shard, mapped when it is used."""
        return self._indexes[shard]

    def _map_index(self, shard: int) -> Index:
        name, samples = self.index_name(shard), int(self.table["samples"][shard])
        mapped = self.map(name, int(self.table["index_bytes"][shard]))
        suffixes, container = self.manifest.suffixes, self.shard_bytes(shard)
        stacked = self.manifest.stacked
        return parse_index(name, mapped, suffixes, samples=samples, container=container, stacked=stacked)

    def map(self, name: str, size: int | None) -> memoryview:
        """A file of the store, mapped.

        Raises:
            StoreError: it is missing or damaged, or another store has its place by now.
        """
        self.check_same()
        return map_file(self.path / name, size)

    def check_same(self) -> None:
        """Refuse to read on from a store that was put in this one's place.

        Raises:
            DamageError: the folder is another one than when it was opened.
        """
        if folder_identity(self.path) != self._identity:
            raise DamageError(f"{str(self.path)!r} was replaced while it was read: open it again")

    def damaged(self, number: int, what: str = "its bytes are not what was written") -> DamageError:
        """The error for a sample that cannot be read: shard, key, source file and the next step.

        Args:
            number: of the sample.
            what: is wrong with it.
        """
        shard = int(self.shards_of(np.array(number)))
        key = int(self.index(shard).key[number - self.first(shard)])
        error = DamageError(
            f"{self.shard_name(shard)} in {str(self.path)!r} is damaged at key {key} (sample {number}, made from "
            f"{self.source(number)!r}: {what}): run `packer verify --full {self.path}`, then copy it again or rebuild"
        )
        error.sample = number
        return error

    def _load_table(self) -> Mapping[str, Array]:
        listed = self.manifest.files.get(SHARDS)
        if listed is None:
            raise FormatError("manifest.json", [f"files does not list {SHARDS}"])
        arrays = parse_frame(SHARDS, COLUMN_MAGIC, self.map(SHARDS, listed["bytes"])).arrays
        missing = [name for name in self._table_columns() if name not in arrays]
        if missing or len(arrays["samples"]) != self.manifest.shards:
            raise FormatError(
                SHARDS, [f"should list {', '.join(self._table_columns())} of {self.manifest.shards} shards"]
            )
        return arrays

    def _table_columns(self) -> tuple[str, ...]:
        return ("samples", "index_bytes", "index_sha256")

    def index_name(self, shard: int) -> str:
        """File of a shard's index."""
        raise NotImplementedError

    def shard_name(self, shard: int) -> str:
        """File of a shard's data."""
        raise NotImplementedError

    def shard_bytes(self, shard: int) -> int | None:
        """Bytes of a shard's data file; None where the container checks by itself."""
        raise NotImplementedError

    def all_files(self) -> dict[str, int]:
        """Bytes of every file of the store but its manifest, by name."""
        return {name: int(listed["bytes"]) for name, listed in self.manifest.files.items()} | {
            name: size for name, size, _ in self.shard_files()
        }

    def shard_files(self) -> Iterator[tuple[str, int, str]]:
        """Name, bytes and SHA-256 of every file that only the shard table lists."""
        for shard in range(self.manifest.shards):
            index_hash = self.table["index_sha256"][shard].tobytes().hex()
            yield self.index_name(shard), int(self.table["index_bytes"][shard]), index_hash
