"""Cases: where they come from, and what one is."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["HOW", "VARIABLE", "Case", "found_cases", "load_case"]

VARIABLE = "PACKER_CORPUS"
"""The environment variable that names a folder of generated cases."""
HOW = f"make cases with `python make_corpus.py DIR` and run again with {VARIABLE}=DIR"
"""What to do so that there are cases."""


@dataclass(frozen=True)
class Case:
    """One case, as its `case.json` says it."""

    folder: Path
    """Where the corpus holds it: read only."""
    document: dict[str, Any]

    @property
    def id(self) -> str:
        """Its name, and its folder's."""
        return self.folder.name

    @property
    def run(self) -> dict[str, Any]:
        """How to start the tool."""
        found: dict[str, Any] = self.document["run"]
        return found

    @property
    def expect(self) -> dict[str, Any]:
        """What must come out."""
        found: dict[str, Any] = self.document["expect"]
        return found

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The operations of a scenario; empty for a case of one build."""
        return list(self.run.get("steps", []))

    @property
    def containers(self) -> list[str]:
        """`lmdb`, `tar` or both."""
        return {"build": ["lmdb"], "shard": ["tar"], "either": ["tar", "lmdb"]}[self.run["cmd"]]

    @property
    def targets(self) -> list[str]:
        """The outputs that its commands write, by their neutral names."""
        return list(dict.fromkeys(step["to"] for step in self.steps if "to" in step)) or ["out"]

    def copy(self, place: Path) -> Path:
        """Put its input elsewhere, links as links, and return where."""
        shutil.copytree(self.folder, place, symlinks=True)
        return place


def load_case(folder: Path) -> Case:
    """Read a case's folder."""
    return Case(folder, json.loads((folder / "case.json").read_text("ascii")))


def found_cases() -> list[Path]:
    """Folders of the cases that the environment names; none without it.

    Raises:
        ValueError: it names a folder that holds none.
    """
    corpus = os.environ.get(VARIABLE)
    if not corpus:
        return []
    found = sorted(path.parent for path in Path(corpus).glob("*/case.json"))
    if not found:
        raise ValueError(f"{VARIABLE} is {corpus!r}, which holds no case: {HOW}")
    return found
