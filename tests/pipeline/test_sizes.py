"""Several sizes of one data set in one build: one decode, one order, stores of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import packer_reader
from packer import Job, Recipe, build
from packer_reader.check import check_store
from packer_reader.errors import OutputError, UsageError
from tests.conftest import make_photos
from tests.faults import tree

if TYPE_CHECKING:
    from pathlib import Path

ONE = Job(workers=1)


def recipes(*sides: int, **options: Any) -> list[Recipe]:
    return [Recipe(resize=(side,), fit="crop", **options) for side in sides]


@pytest.mark.parametrize("container", ["tar", "lmdb"])
def test_each_size_is_a_store_with_the_same_keys(container: Any, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 40)
    (source / "cat" / "bad.jpg").write_bytes(b"x")
    for name, job in (("one", ONE), ("two", Job(workers=2))):
        report = build(str(source), str(tmp_path / name), recipes(16, 32, container=container, unit=8), job)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    small, large = (packer_reader.open(tmp_path / "one" / side) for side in ("16", "32"))
    assert small[0]["image"].shape == (16, 16, 3)
    assert large[0]["image"].shape == (32, 32, 3)
    for column in ("label", "name", "source_hash"):
        assert list(map(str, small.columns[column])) == list(map(str, large.columns[column]))
    assert (np.asarray(small.index(0).key) == np.asarray(large.index(0).key)).all()
    assert (report.found, report.written, report.skipped, set(report.sizes)) == (41, 40, 1, {"16", "32"})


def test_sizes_and_splits_nest(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 40)
    build(str(source), str(tmp_path / "o"), recipes(16, 32, val=0.3), ONE)
    assert len(packer_reader.open(tmp_path / "o" / "16", split="val")) > 0
    assert len(packer_reader.open(tmp_path / "o", split="32/train")) > 0
    assert list(check_store(tmp_path / "o" / "16" / "val", full=True)) == []
    assert (tmp_path / "o" / "32" / "README.md").read_text().count("- split:") == 2
    with pytest.raises(OutputError, match="exists already"):
        build(str(source), str(tmp_path / "o"), recipes(16, 32, val=0.3), ONE)
    build(str(source), str(tmp_path / "o"), recipes(16, 24, val=0.3), Job(workers=1, overwrite=True))
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == ["16", "24"]


def test_a_sample_that_one_size_cannot_hold_is_in_none(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 10)
    sizes = recipes(16, 32, max_pixels=900)
    with pytest.raises(Exception, match="none of the 10 samples could be converted"):
        build(str(source), str(tmp_path / "o"), sizes, ONE)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([Recipe(resize=(8,)), Recipe(resize=(8,))], "--resize is given twice with the same size"),
        ([Recipe(resize=(8,)), Recipe(resize=(9,), seed=1)], "must differ in resize alone"),
        ([], "must differ in resize alone"),
    ],
)
def test_recipes_that_are_not_one_job_are_refused(wrong: list[Recipe], message: str, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 2)
    with pytest.raises(UsageError, match=message):
        build(str(source), str(tmp_path / "o"), wrong, ONE)


def test_the_command_takes_several_sizes(tmp_path: Path, run: Any) -> None:
    source = make_photos(tmp_path / "src", 6)
    done = run(
        "build", source, tmp_path / "o", "--resize", "16", "--resize", "8x12", "--fit", "stretch", "--workers", "1"
    )
    assert "/o/16/train-000000.tar" in done.stdout
    assert "/o/8x12/train-000000.tar" in done.stdout
    assert packer_reader.open(tmp_path / "o" / "8x12")[0]["image"].shape == (8, 12, 3)


def test_sizes_can_be_reused(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 12)
    build(str(source), str(tmp_path / "old"), recipes(16, 32), ONE)
    report = build(str(source), str(tmp_path / "new"), recipes(16, 32), Job(workers=1, reuse=str(tmp_path / "old")))
    assert report.reused == 12
    assert tree(tmp_path / "old") == tree(tmp_path / "new")
