"""The commands on real folders: what they print, what they leave, how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import packer_reader
from tests.conftest import make_photos, make_serials
from tests.faults import tree

if TYPE_CHECKING:
    from collections.abc import Callable


def test_build_makes_an_lmdb_store(run: Callable[..., Any], photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.lmdb"
    result = run("build", photos, out, "--resize", "32", "--fit", "crop", "--workers", "1")
    assert "24 samples" in result.stdout
    assert "found 24 = written 24 + skipped 0" in result.stdout
    assert f"{out}/data.mdb  24 samples" in result.stdout
    assert packer_reader.open(out).manifest.kind == "lmdb"


def test_shard_prints_the_pattern_and_the_count(run: Callable[..., Any], serials: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    result = run("shard", serials, out, "--size", "30KB", "--workers", "1")
    shards = len(list(out.glob("*.tar")))
    assert f"{out}/train-{{000000..{shards - 1:06d}}}.tar  60 samples in {shards} shards" in result.stdout


def test_shard_alone_takes_this_folder(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_serials(tmp_path / "pets", 6))
    run("shard", "--size", "256MB", "--workers", "1")
    assert len(packer_reader.open(tmp_path / "pets-shards")) == 6


def test_json_is_one_object_and_nothing_else(run: Callable[..., Any], serials: Path, tmp_path: Path) -> None:
    result = run("build", serials, tmp_path / "o", "--json", "--workers", "1")
    report = json.loads(result.stdout)
    assert result.stderr == ""
    assert (report["found"], report["samples"], report["store"]) == (60, 60, str(tmp_path / "o"))
    assert {"written", "skipped", "records", "bytes", "shards", "seconds", "samples_per_s", "errors"} <= set(report)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 3),
        (("--max-errors", "0"), 3),
        (("--max-errors", "1"), 0),
        (("--max-errors", "2%"), 3),
        (("--max-errors", "5%"), 0),
    ],
)
def test_skipped_samples_decide_the_exit_code(
    options: tuple[str, ...], code: int, run: Callable[..., Any], tmp_path: Path
) -> None:
    source = make_serials(tmp_path / "s", 30)
    (source / "b" / "00010.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    for out in ("o", "o.lmdb"):
        result = run("build", source, tmp_path / out, "--workers", "1", *options, exit_code=code)
        assert "found 30 = written 29 + skipped 1" in result.stdout
        (line,) = (tmp_path / out / "errors.jsonl").read_text().splitlines()
        assert json.loads(line)["name"] == "b/00010.png"
        run("verify", tmp_path / out, "--full")
    digests = {packer_reader.open(tmp_path / out).manifest.content_digest for out in ("o", "o.lmdb")}
    assert len(digests) == 1


def test_notices_reach_the_user(run: Callable[..., Any], tmp_path: Path) -> None:
    source = make_serials(tmp_path / "s", 6)
    (source / "empty").mkdir()
    result = run("build", source, tmp_path / "o", "--workers", "1", "--quiet")
    assert "note: class folder 'empty' holds no image; it keeps its index 3" in result.stderr


def test_plan_says_what_would_be_and_writes_nothing(run: Callable[..., Any], tmp_path: Path) -> None:
    source = make_photos(tmp_path / "s", 12)
    (source / "cat" / "x.jpg").write_bytes(b"no picture")
    (source / "notes.txt").touch()
    before = tree(tmp_path)
    result = run("plan", source, "--resize", "32", "--fit", "crop", "--val", "0.3")
    assert "imagefolder (2 class folders)" in result.stdout
    assert "class     cat: 7" in result.stdout
    assert "problem   'cat/x.jpg': not-an-image" in result.stdout
    assert "left out  1 .txt" in result.stdout
    assert "estimate  store" in result.stdout
    document = json.loads(run("plan", source, "--json").stdout)
    assert (document["samples"], document["classes"]) == (13, {"cat": 7, "dog": 6})
    assert document["estimate"]["store_bytes"] > 0
    assert tree(tmp_path) == before


def test_plan_estimates_the_store(run: Callable[..., Any], photos: Path, tmp_path: Path) -> None:
    estimate = json.loads(run("plan", photos, "--resize", "32", "--fit", "crop", "--json").stdout)["estimate"]
    run("build", photos, tmp_path / "o", "--resize", "32", "--fit", "crop", "--workers", "1")
    real = sum(path.stat().st_size for path in (tmp_path / "o").glob("*.tar"))
    assert abs(estimate["store_bytes"] - real) < 0.1 * real


def test_inspect_tells_what_a_store_holds(run: Callable[..., Any], store: Path) -> None:
    lines = run("inspect", store).stdout
    for text in ("samples   60", "field     image: image, png, uint8 16x16x3", "class     1: b (20)", "skipped"):
        assert text in lines
    document = json.loads(run("inspect", store, "--json").stdout)
    assert (document["samples"], document["classes"]) == (60, ["a", "b", "c"])


def test_inspect_shows_one_sample(run: Callable[..., Any], store: Path) -> None:
    opened = packer_reader.open(store)
    by_name = json.loads(run("inspect", store, "--sample", opened.source(7), "--json").stdout)
    by_number = json.loads(run("inspect", store, "--sample", "7", "--json").stdout)
    assert by_name == by_number
    assert (by_name["source"], by_name["class"]) == (opened.source(7), "abc"[opened[7]["label"]])
    assert f"source    {opened.source(7)!r}" in run("inspect", store, "--sample", "7").stdout


def test_verify_names_damage_and_ends_with_4(run: Callable[..., Any], serials: Path, tmp_path: Path) -> None:
    run("build", serials, tmp_path / "o", "--val", "0.5", "--workers", "1", "--quiet")
    assert "no damage found (not checked without --full" in run("verify", tmp_path / "o").stdout
    path = tmp_path / "o" / "val" / "val-000000.tar"
    path.write_bytes(path.read_bytes()[:-5])
    result = run("verify", tmp_path / "o", exit_code=4)
    assert f"{path}: has " in result.stdout
    assert json.loads(run("verify", tmp_path / "o", "--json", exit_code=4).stdout)["ok"] is False


@pytest.mark.parametrize("program", [["packer"], ["packer-data"], [sys.executable, "-m", "packer"]])
def test_every_way_to_start_it_works(program: list[str]) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [*program, "--version"], capture_output=True, text=True, check=True, env=os.environ | {"PATH": path}
    )
    assert packer_reader.__version__ in done.stdout


def test_progress_in_a_log_is_plain(serials: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "packer", "build", str(serials), str(tmp_path / "o")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "\r" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
