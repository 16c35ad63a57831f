"""Stores of every past version read to the same samples; the writer still writes the present version's bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from packer import Job, build
from packer_reader.check import check_store
from tests.faults import tree
from tests.golden.make import describe, fix_times, recipe

VERSIONS = sorted(path for path in (Path(__file__).parent / "golden").iterdir() if path.name.startswith("v"))


@pytest.mark.parametrize("container", ["tar", "lmdb"])
@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_golden_stores_read_as_they_did(version: Path, container: str) -> None:
    assert list(check_store(version / container, full=True)) == []
    assert describe(version / container) == json.loads((version / "expected.json").read_text())


@pytest.mark.parametrize("container", ["tar", "lmdb"])
def test_the_writer_writes_golden_bytes(container: str, tmp_path: Path) -> None:
    source = fix_times(Path(shutil.copytree(VERSIONS[-1] / "src", tmp_path / "src")))
    build(str(source), str(tmp_path / "o"), recipe(container), Job(workers=1))
    found, golden = tree(tmp_path / "o"), tree(VERSIONS[-1] / container)
    manifests = [json.loads(files.pop("manifest.json")) for files in (found, golden)]
    assert found == golden
    for manifest in manifests:
        # Library versions, and the hash over them, differ from machine to machine.
        for name in ("versions", "manifest_sha256"):
            manifest.pop(name)
    assert manifests[0] == manifests[1]
