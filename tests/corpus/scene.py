"""Where a case runs: a copy of its folder, one container, and what has come of it so far."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tests.corpus import processes
from tests.corpus.built import Built, is_store
from tests.corpus.commands import build_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.corpus.cases import Case
    from tests.corpus.processes import Done, Running

__all__ = ["Scene"]


@dataclass
class Scene:
    """A case that is being run with one container."""

    case: Case
    container: str
    root: Path
    """The copy of the case's folder."""
    done: list[Done] = field(default_factory=list)
    """The builds that have ended."""
    good: set[Path] = field(default_factory=set)
    """Outputs that must be complete stores: built, and not hurt since."""
    problems: list[str] = field(default_factory=list)
    """What went wrong in the steps."""
    refusals: list[str] = field(default_factory=list)
    """Reads that ended with a clear error before their first batch."""
    opened: list[Any] = field(default_factory=list)
    """Readers that the parent process holds open."""
    orders: dict[str, Any] = field(default_factory=dict)
    """What reads with an id have given."""

    def __post_init__(self) -> None:
        self.source = self.root / self.case.run["source"]
        self.before = self._bytes_of_source()
        self.entries = {place: set(os.listdir(place)) for place in [self.root, *self._folders()]}

    def _folders(self) -> list[Path]:
        return [place for place in self.root.rglob("*") if place.is_dir() and not place.is_symlink()]

    def place(self, name: str) -> Path:
        """The path of a neutral name: outputs of LMDB end in `.lmdb`."""
        for target in sorted(self.case.targets, key=len, reverse=True):
            if self.container == "lmdb" and PurePosixPath(name).is_relative_to(target):
                path = self.root / (target if target.endswith(".lmdb") else f"{target}.lmdb")
                return path / PurePosixPath(name).relative_to(target)
        return self.root / name

    @property
    def outputs(self) -> list[Path]:
        """Every output that the case's commands name."""
        return [self.place(target) for target in self.case.targets]

    def built(self, path: Path) -> Built:
        """An output, opened."""
        return Built(path, archives=self.case.run["source_type"] == "tar")

    def command(self, target: str, options: Mapping[str, Any]) -> list[str]:
        """The command that builds an output."""
        return build_command(self.case.run, self.source, self.place(target), options)

    def start(self, target: str, step: Mapping[str, Any]) -> Running:
        """Start a build."""
        limit = step.get("limit_fsize", step.get("disk_bytes"))
        return processes.start(self.command(target, step.get("options", {})), self.root, step.get("env"), limit)

    def note(self, target: str, done: Done) -> None:
        """Take note of a build that has ended by itself."""
        self.done.append(done)
        self.problems += done.problems()
        path = self.place(target)
        if done.code == 0:
            self.good.add(path)
            if not is_store(path):
                self.problems.append(f"no store at {target!r}: {done}")

    def changed_source(self) -> list[str]:
        """Files of the source that are not what they were."""
        now = self._bytes_of_source()
        return [os.fsdecode(name) for name, held in self.before.items() if now.get(name) != held]

    def _bytes_of_source(self) -> dict[bytes, object]:
        found: dict[bytes, object] = {}
        top = os.fsencode(self.source)
        paths = [top] if self.source.is_file() else []
        paths += [os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names]
        for path in paths:
            mode = os.lstat(path).st_mode
            found[path] = os.readlink(path) if stat.S_ISLNK(mode) else hashlib.sha256(_read(path)).digest()
        return found


def _read(path: bytes) -> bytes:
    with open(path, "rb") as file:
        return file.read()
