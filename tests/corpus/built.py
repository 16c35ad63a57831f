"""A built store as a case sees it: samples by the corpus' names, the report, and the stored keys."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections import defaultdict
from functools import cached_property
from itertools import groupby
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import lmdb
import msgpack

import packer_reader
from tests.corpus.samples import Sample

__all__ = ["Built", "is_store", "tree"]


def is_store(path: Path) -> bool:
    """Whether a folder says that it is a complete store, or holds one."""
    return (path / "manifest.json").exists() or any(path.glob("*/manifest.json"))


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by relative name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Built:
    """A store that a case's command has made."""

    def __init__(self, path: Path, *, archives: bool) -> None:
        """Open a store; with `archives`, names are compared by key: without folder of the archive and extension."""
        self.path = path
        self.store = packer_reader.open(path)
        self._archives = archives

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The manifest as it is written."""
        found: dict[str, Any] = json.loads((self.path / "manifest.json").read_text())
        return found

    @cached_property
    def names(self) -> list[str]:
        """Source names in stored order."""
        return [self.store.source(number) for number in range(len(self.store))]

    @cached_property
    def reported(self) -> list[dict[str, Any]]:
        """The lines of errors.jsonl."""
        return [json.loads(line) for line in (self.path / "errors.jsonl").read_text().splitlines()]

    def aliases(self, name: str) -> set[str]:
        """What the corpus may call an input."""
        row = re.fullmatch(r".*\.jsonl:([0-9]+)", name)
        if row is not None:
            return {name, f"line {row[1]}"}
        if not self._archives:
            return {name}
        parts = PurePosixPath(name).parts
        inside = max((n + 1 for n, part in enumerate(parts[:-1]) if part.endswith(".tar")), default=0)
        member = PurePosixPath(*parts[inside:])
        return {name, str(member), str(member.with_suffix("") if member.name else member)}

    @cached_property
    def _numbers(self) -> dict[str, list[int]]:
        found = defaultdict(list)
        for number, name in enumerate(self.names):
            for alias in self.aliases(name):
                found[alias].append(number)
        return dict(found)

    def numbers(self, name: str) -> list[int]:
        """The samples that were made from an input."""
        return self._numbers.get(name, [])

    def sample(self, number: int) -> Sample:
        """A decoded sample."""
        return Sample(self.store[number], self.store.manifest.suffixes, self.store.classes)

    @property
    def shards(self) -> list[Path]:
        """The tar shards, or the LMDB file, in order."""
        return sorted(self.path.glob("*.tar")) or [self.path / "data.mdb"]

    def keys(self) -> list[str]:
        """The samples' keys as other software finds them; a key that comes back after another one counts again."""
        return self._lmdb_keys() if self.store.manifest.kind == "lmdb" else self._tar_keys()

    def _tar_keys(self) -> list[str]:
        names: list[str] = []
        for shard in self.shards:
            with tarfile.open(shard) as archive:
                names += archive.getnames()
        folders = [(PurePosixPath(name).parent, PurePosixPath(name).name.partition(".")[0]) for name in names]
        return [str(folder / key) for (folder, key), _ in groupby(folders)]

    def _lmdb_keys(self) -> list[str]:
        keys = []
        # A copy: one process may open an LMDB file once, and the reader holds this one.
        with TemporaryDirectory() as copy:
            shutil.copy(self.path / "data.mdb", copy)
            with lmdb.open(copy, readonly=True, lock=False) as environment, environment.begin() as txn:
                for key, value in txn.cursor():
                    held = msgpack.unpackb(value)
                    keys += [str(inner) for inner, _ in held] if isinstance(held, list) else [str(key)]
        return keys
