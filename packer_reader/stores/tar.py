"""Tar shards: fields are views into the mapped files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packer_reader.format.names import index_file, shard_file
from packer_reader.stores.base import Store
from packer_reader.stores.files import Recent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from packer_reader.format.index import Index
    from packer_reader.format.manifest import Manifest

__all__ = ["TarStore"]


class TarStore(Store):
    """A store of tar shards."""

    def __init__(self, path: Path, manifest: Manifest, identity: tuple[int, int] | None = None) -> None:
        """Take a complete store's folder and its parsed manifest; see `Store`."""
        super().__init__(path, manifest, identity)
        self._maps = Recent(self._map_shard)

    def data(self, shard: int, index: Index, row: int) -> bytes | memoryview:  # noqa: ARG002 - the seam's signature
        """The whole shard, mapped when it is used."""
        return self._maps[shard]

    def _map_shard(self, shard: int) -> memoryview:
        return self.map(self.shard_name(shard), self.shard_bytes(shard))

    def index_name(self, shard: int) -> str:
        """File of a shard's index."""
        return index_file(self.manifest.prefix, shard)

    def shard_name(self, shard: int) -> str:
        """The tar file."""
        return shard_file(self.manifest.prefix, shard)

    def shard_bytes(self, shard: int) -> int | None:
        """Bytes of the tar file."""
        return int(self._table["bytes"][shard])

    def shard_files(self) -> Iterator[tuple[str, int, str]]:
        """Name, bytes and SHA-256 of each shard and index."""
        yield from super().shard_files()
        for shard in range(self.manifest.shards):
            yield self.shard_name(shard), int(self._table["bytes"][shard]), self._table["sha256"][shard].tobytes().hex()

    def _table_columns(self) -> tuple[str, ...]:
        return (*super()._table_columns(), "bytes", "sha256")
