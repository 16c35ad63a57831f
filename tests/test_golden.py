"""Stores of every past version read to the same samples; the writer still writes the present version's bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from packer import Job, Recipe, build
from packer_reader.check import check_store
from tests.faults import tree
from tests.golden.make import TEXTS, describe, describe_text, fix_times, make_documents, recipe, text_recipe

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
    same_bytes(tmp_path / "o", VERSIONS[-1] / container)


def same_bytes(one: Path, other: Path) -> None:
    found, golden = tree(one), tree(other)
    manifests = [json.loads(files.pop("manifest.json")) for files in (found, golden)]
    assert found == golden
    for manifest in manifests:
        # Library versions, and the hash over them, differ from machine to machine. A recipe of today has options that
        # one of then has not; all of them have to be what they then were without saying.
        for name in ("versions", "manifest_sha256", "recipe_digest"):
            manifest.pop(name)
        manifest["recipe"] = Recipe.from_json(manifest["recipe"]).to_json()
    assert manifests[0] == manifests[1]


@pytest.mark.parametrize("container", ["tar", "lmdb"])
@pytest.mark.parametrize("name", TEXTS)
def test_golden_stores_of_text_read_and_are_written_as_they_were(name: str, container: str, tmp_path: Path) -> None:
    golden = VERSIONS[-1] / f"{name}-{container}"
    assert list(check_store(golden, full=True)) == []
    assert describe_text(golden) == json.loads((VERSIONS[-1] / f"{name}.json").read_text())
    build(str(make_documents(tmp_path)), str(tmp_path / "o"), text_recipe(name, container), Job(workers=1))
    same_bytes(tmp_path / "o", golden)
