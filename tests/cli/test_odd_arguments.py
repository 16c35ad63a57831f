"""Arguments and stores that nobody means, and some have: one line each."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from packer import Job, Recipe, build
from packer_reader.check import check_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


ONE = Job(workers=1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--resize", "²"),
        ("--resize", "1" * 5000),
        ("--max-errors", "inf"),
        ("--max-errors", "nan"),
        ("--val", "0.5", "--group-by", "a{99999999999999}"),
        ("--size", "9" * 400),
        ("--size", ".5"),
    ],
)
def test_odd_option_values_are_usage_errors(arguments: tuple[str, ...], run: Callable[..., Any], serials: Path) -> None:
    result = run("build", serials, "never", *arguments, exit_code=2)
    assert result.stderr.startswith("error: --")


def test_names_that_are_too_long_are_one_line(run: Callable[..., Any], serials: Path) -> None:
    for arguments in (("build", "n" * 300, "o"), ("build", serials, "n" * 300), ("inspect", "n" * 300)):
        result = run(*arguments, exit_code=4 if arguments[0] == "inspect" else 1)
        assert "File name too long" in result.stderr


def test_a_full_stdout_is_one_line(tar_store: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m packer inspect {tar_store} > /dev/full",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode != 0


def test_a_huge_manifest_is_not_read(tmp_path: Path, run: Callable[..., Any]) -> None:
    (tmp_path / "o").mkdir()
    with (tmp_path / "o" / "manifest.json").open("wb") as file:
        file.truncate(1 << 42)
    assert "the limit is" in run("inspect", tmp_path / "o", exit_code=4).stderr
    assert "the limit is" in run("verify", tmp_path / "o", exit_code=4).stdout


@pytest.mark.parametrize("stray", ["folder", "link"])
def test_stray_folders_and_links_are_found(stray: str, serials: Path, tmp_path: Path) -> None:
    build(str(serials), str(tmp_path / "o"), Recipe(), ONE)
    path = tmp_path / "o" / "stray"
    path.mkdir() if stray == "folder" else path.symlink_to(tmp_path)
    assert [finding.file for finding in check_store(tmp_path / "o")] == ["stray"]


@pytest.mark.parametrize("change", [{"bytes": 5}, {"records": 5}, {"shuffled": False}])
def test_wrong_sums_in_a_manifest_are_found(change: dict[str, Any], store: Path, tmp_path: Path) -> None:
    import hashlib
    import shutil

    from packer_reader.format.columns import canonical_json

    copy = shutil.copytree(store, tmp_path / "copy")
    document = json.loads((copy / "manifest.json").read_text()) | change
    document.pop("manifest_sha256")
    document["manifest_sha256"] = hashlib.sha256(canonical_json(document)).hexdigest()
    (copy / "manifest.json").write_text(json.dumps(document))
    assert {finding.file for finding in check_store(copy)} == {"manifest.json"}
