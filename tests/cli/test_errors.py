"""Anything a user can get wrong: one line with the next step, the right exit code, no traceback."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import make_serials

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a source, an empty one, a file, and a store."""
    make_serials(tmp_path / "src", 6)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("build", "gone", "o"), 1, "source 'gone' does not exist: check the path"),
        (
            ("build", "empty", "o"),
            1,
            "no images in 'empty' (found: nothing): give the folder that holds the class folders",
        ),
        (("build", "file", "o"), 1, "source 'file' is a file"),
        (("build", "src", "src/o"), 1, "src/o' lies inside the source: choose a place outside 'src'"),
        (("build", "src", "."), 1, "' holds the source: choose another place"),
        (("build", "src", "file"), 1, "file' exists and is not a folder"),
        (("build", "src", "broken"), 1, "broken' exists already"),
        (("build", "src", "broken", "--overwrite"), 1, "broken' will not be replaced: manifest.json: is not JSON"),
        (("build", "src", "file/o"), 1, "is a file"),
        (("build", "src", "o", "--resize", "big"), 2, "--resize is 'big', it must be N or HxW in pixels"),
        (("build", "src", "o", "--resize", "0"), 2, "--resize is 0"),
        (("build", "src", "o", "--fit", "crop"), 2, "--fit crop says how an image meets --resize"),
        (("build", "src", "o", "--fit", "squash", "--resize", "8"), 2, "--fit is 'squash', it must be one of"),
        (("build", "src", "o", "--size", "lots"), 2, "--size is 'lots', it must be a number with B, KB"),
        (("build", "src", "o", "--size", "12XB"), 2, "--size is '12XB'"),
        (("build", "src", "o", "--size", "1B"), 2, "--size is 1"),
        (("build", "src", "o", "--encode", "gif"), 2, "--encode is 'gif', it must be one of keep, jpg"),
        (("build", "src", "o", "--quality", "101"), 2, "--quality is 101, it must be a whole number from 1 to 100"),
        (("build", "src", "o", "--quality", "high"), 2, "'high' is not a valid integer"),
        (("build", "src", "o", "--workers", "0"), 2, "--workers is 0"),
        (("build", "src", "o", "--runner", "slurm"), 2, "--runner is 'slurm', it must be one of"),
        (("build", "src", "o", "--from", "cocos"), 2, "--from is 'cocos', it must be one of imagefolder"),
        (("build", "src", "o", "--val", "2"), 2, "--val is 2.0"),
        (("build", "src", "o", "--seed", "-1"), 2, "--seed is -1"),
        (("build", "src", "o", "--max-errors", "some"), 2, "--max-errors is 'some', it must be a count, or a share"),
        (("build", "src", "o", "--max-errors", "101%"), 2, "--max-errors is '101%'"),
        (("shard", "src", "o.lmdb"), 2, "shard writes tar shards: use packer build for LMDB"),
        (("build", "src"), 2, "no source is given"),
        (("build", "src", "o", "--what"), 2, "No such option"),
        (("inspect", "gone"), 4, "store 'gone' does not exist"),
        (("inspect", "empty"), 4, "'empty' is no complete store, it has no manifest.json"),
        (("inspect", "broken"), 4, "manifest.json: is not JSON, or cut short"),
        (("verify", "gone"), 4, "store 'gone' does not exist"),
        (("plan", "gone"), 1, "source 'gone' does not exist"),
    ],
)
def test_each_mistake_is_one_line(
    arguments: tuple[str, ...], code: int, message: str, place: Path, run: Callable[..., Any]
) -> None:
    before = sorted(path.name for path in place.iterdir())
    result = run(*arguments, exit_code=code)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in place.iterdir()) == before
    if code != 2 or result.stderr.startswith("error"):
        assert result.stderr.count("\n") == 1


def test_a_sample_that_is_not_there(run: Callable[..., Any], tar_store: Path) -> None:
    assert "there is no sample 99: the store has 60" in run("inspect", tar_store, "--sample", "99", exit_code=4).stderr
    missing = run("inspect", tar_store, "--sample", "a/gone.png", exit_code=4).stderr
    assert "no sample was made from 'a/gone.png'" in missing


def test_a_split_that_is_not_there(run: Callable[..., Any], serials: Path, tmp_path: Path) -> None:
    run("build", serials, tmp_path / "o", "--val", "0.5", "--workers", "1", "--quiet")
    result = run("inspect", tmp_path / "o", "--split", "test", exit_code=4)
    assert "there is no split 'test'" in result.stderr
    result = run("inspect", tmp_path / "o", "--sample", "0", exit_code=2)
    assert "holds stores train, val: choose a split" in result.stderr


def test_a_closed_pipe_is_no_traceback(tar_store: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m packer inspect {tar_store} | true",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
