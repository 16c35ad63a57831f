"""Writes the golden stores of the current format version; never run again for a version that has been released.

python -m tests.golden.make
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import packer_reader
from packer import Job, Recipe, build
from tests.conftest import MTIME_NS, make_serials

HERE = Path(__file__).parent / "v1"


def recipe(container: str) -> Recipe:
    """Raw pixels and text: no codec's version shows in the bytes."""
    return Recipe(container=container, encode="raw", shard_bytes=16_000, meta=True, unit=4, seed=3)  # type: ignore[arg-type]


def make_source(root: Path) -> Path:
    """Twelve numbered pictures and one that is broken."""
    source = make_serials(root / "src", 12)
    (source / "b" / "00004.png").write_bytes(b"no picture")
    return fix_times(source)


def fix_times(source: Path) -> Path:
    """Times are part of a listing; git does not keep them."""
    for path in source.rglob("*.png"):
        os.utime(path, ns=(MTIME_NS, MTIME_NS))
    return source


def describe(store: Path) -> list[dict[str, object]]:
    """What a reader must find, sample by sample."""
    opened = packer_reader.open(store)
    return [
        {
            "source": opened.source(number),
            "label": opened[number]["label"],
            "meta": opened[number]["meta"],
            "pixels": hashlib.sha256(opened[number]["image"].tobytes()).hexdigest(),
        }
        for number in range(len(opened))
    ]


def main() -> None:
    if HERE.exists():
        sys.exit(f"{HERE} exists: golden stores are never rewritten")
    with tempfile.TemporaryDirectory() as folder:
        source = make_source(Path(folder))
        for container in ("tar", "lmdb"):
            build(str(source), str(HERE / container), recipe(container), Job(workers=1))
        shutil.copytree(source, HERE / "src")
    (HERE / "expected.json").write_text(json.dumps(describe(HERE / "tar"), indent=1) + "\n")


if __name__ == "__main__":
    main()
