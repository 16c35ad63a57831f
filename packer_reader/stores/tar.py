"""Tar shards: fields are views into the mapped files."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from packer_reader.format.names import index_file, shard_file
from packer_reader.stores.ahead import address_of
from packer_reader.stores.base import Store
from packer_reader.stores.files import Recent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from packer_reader.format.manifest import Manifest
    from packer_reader.stores.base import Ints

__all__ = ["TarStore"]


class TarStore(Store):
    """A store of tar shards."""

    def __init__(self, path: Path, manifest: Manifest, identity: tuple[int, int] | None = None) -> None:
        """Take a complete store's folder and its parsed manifest; see `Store`."""
        super().__init__(path, manifest, identity)
        self._maps = Recent(self._map_shard)

    def holders(self, shards: Ints, rows: Ints) -> list[memoryview]:  # noqa: ARG002 - the seam's signature
        """The whole shards, mapped when they are used."""
        numbers = shards.tolist()
        maps = {shard: self._maps[shard] for shard in set(numbers)}
        return [maps[shard] for shard in numbers]

    def addresses(self, shard: int, rows: Ints) -> tuple[Any, Ints, Ints]:
        """The shard, and the address of its first byte."""
        memory, starts = self.starts(shard, rows)
        return memory, starts, np.full(len(rows), len(memory))

    def starts(self, shard: int, rows: Ints) -> tuple[Any, Ints]:
        """The same of `addresses`."""
        memory = self._maps[shard]
        return memory, np.full(len(rows), address_of(memory))

    def _map_shard(self, shard: int) -> memoryview:
        """Mapped without reading around what is touched: what will be read is asked for, and nothing beside it."""
        shard_map = self.map(self.shard_name(shard), self.shard_bytes(shard))
        if isinstance(shard_map.obj, mmap.mmap):
            with suppress(OSError):  # a system that takes no advice reads as it likes
                shard_map.obj.madvise(mmap.MADV_RANDOM)
        return shard_map

    def index_name(self, shard: int) -> str:
        """File of a shard's index."""
        return index_file(self.manifest.prefix, shard)

    def shard_name(self, shard: int) -> str:
        """The tar file."""
        return shard_file(self.manifest.prefix, shard)

    def shard_bytes(self, shard: int) -> int | None:
        """Bytes of the tar file."""
        return int(self.table["bytes"][shard])

    def shard_files(self) -> Iterator[tuple[str, int, str]]:
        """Name, bytes and SHA-256 of each shard and index."""
        yield from super().shard_files()
        for shard in range(self.manifest.shards):
            yield self.shard_name(shard), int(self.table["bytes"][shard]), self.table["sha256"][shard].tobytes().hex()

    def _table_columns(self) -> tuple[str, ...]:
        return (*super()._table_columns(), "bytes", "sha256")
