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
from packer import Job, Recipe, build, tokenized
from tests.conftest import MTIME_NS, make_serials

HERE = Path(__file__).parent / "v1"


def recipe(container: str) -> Recipe:
    """Raw pixels and text: no codec's version shows in the bytes."""
    return Recipe(container=container, encode="raw", shard_bytes=16_000, meta=True, unit=4, seed=3)  # type: ignore[arg-type]


TEXTS: dict[str, dict[str, object]] = {"documents": {"pack": "none"}, "sequences": {"pack": "bestfit", "seq_len": 64}}
"""Golden stores of text, in each container."""


def text_recipe(name: str, container: str) -> Recipe:
    """The built-in tokenizer: no library's version shows in the bytes."""
    return Recipe(container=container, shard_bytes=16_000, seed=3, text=tokenized(**TEXTS[name]))  # type: ignore[arg-type]


def make_documents(root: Path) -> Path:
    """Twenty lines, two of them bad."""
    lines = [json.dumps({"text": f"document {n}: " + "ab ü " * (n * n % 37)}) for n in range(20)]
    path = root / "d.jsonl"
    path.write_text("\n".join([*lines[:7], "{", *lines[7:], '{"text": ""}']) + "\n", encoding="utf-8")
    os.utime(path, ns=(MTIME_NS, MTIME_NS))
    return path


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


def describe_text(store: Path) -> list[dict[str, object]]:
    """The same of a store of text."""
    opened = packer_reader.open(store)
    return [
        {"source": opened.source(number)}
        | {name: value if isinstance(value, int) else value.tolist() for name, value in opened[number].items()}
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
        documents = make_documents(Path(folder))
        for name in TEXTS:
            for container in ("tar", "lmdb"):
                build(str(documents), str(HERE / f"{name}-{container}"), text_recipe(name, container), Job(workers=1))
    (HERE / "expected.json").write_text(json.dumps(describe(HERE / "tar"), indent=1) + "\n")
    for name in TEXTS:
        (HERE / f"{name}.json").write_text(json.dumps(describe_text(HERE / f"{name}-tar")) + "\n")


if __name__ == "__main__":
    main()
