"""What has been finished: a line per unit and per shard, appended as they are done."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from packer.unit import UnitDone

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Journal", "ShardDone"]


@dataclass(frozen=True)
class ShardDone:
    """A finished shard, or a finished index run of an LMDB store."""

    number: int
    samples: int
    bytes: int
    """Of the tar file; 0 for LMDB."""
    sha256: str
    """Of the tar file; empty for LMDB."""
    index_bytes: int
    index_sha256: str


@dataclass
class Journal:
    """The lines of an interrupted build, and the file that goes on."""

    path: Path
    units: dict[int, UnitDone] = field(default_factory=dict)
    shards: dict[int, ShardDone] = field(default_factory=dict)

    def load(self) -> Journal:
        """Read what an earlier run left; a last line cut short is nothing."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return self
        for line in lines:
            try:
                entry = json.loads(line)
                if "unit" in entry:
                    done = UnitDone(**{**entry, "data": tuple(entry["data"]), "rows": tuple(entry["rows"])})
                    self.units[done.unit] = done
                else:
                    shard = ShardDone(**entry)
                    self.shards[shard.number] = shard
            except (ValueError, TypeError, KeyError):
                continue
        return self

    def add(self, done: UnitDone | ShardDone) -> None:
        """Note a finished unit or shard."""
        if isinstance(done, UnitDone):
            self.units[done.unit] = done
        else:
            self.shards[done.number] = done
        entry: dict[str, Any] = asdict(done)
        # A newline first as well: a line that was cut by a crash does not swallow this one.
        line = b"\n" + json.dumps(entry).encode() + b"\n"
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, line)
        finally:
            os.close(file)
