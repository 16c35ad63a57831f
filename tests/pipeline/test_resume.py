"""Interrupted builds go on: damage is redone, other jobs are refused, two at a time do not mix."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from packer import Job, Recipe, build
from packer.output.journal import Journal
from packer.output.lock import Lock
from packer.unit import UnitDone
from packer_reader.errors import OutputError, ResumeError
from tests.conftest import make_photos
from tests.faults import flip_byte, tree, truncate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPTIONS = ("--resize", "48", "--fit", "crop", "--encode", "png")
RECIPE = {"resize": (48,), "fit": "crop", "encode": "png"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,500 JPEGs: six units, some seconds of work."""
    return make_photos(tmp_path_factory.mktemp("resume") / "src", 1500)


@pytest.fixture(scope="module", params=["o", "o.lmdb"])
def reference(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed build."""
    out: Path = tmp_path_factory.mktemp("reference") / request.param
    container: Any = "lmdb" if out.suffix else "tar"
    shards = {} if out.suffix else {"shard_bytes": 1_000_000}
    build(str(source), str(out), Recipe(container=container, **RECIPE, **shards), Job(workers=2))  # type: ignore[arg-type]
    return out


def command(source: Path, out: Path, *options: str) -> list[str]:
    size = () if out.suffix else ("--size", "1MB")
    return [sys.executable, "-m", "packer", "build", str(source), str(out), *OPTIONS, *size, "--quiet", *options]


def run(source: Path, out: Path, *options: str, **popen: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(source, out, *options), capture_output=True, text=True, check=False, **popen)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    """Until something holds or the process has ended; polls, since a file system tells nothing."""
    while process.poll() is None and not condition():
        time.sleep(0.005)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupts_say_how_to_go_on(number: signal.Signals, code: int, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    process = subprocess.Popen(
        command(source, out, "--workers", "2"), stderr=subprocess.PIPE, text=True,
        # A test run in the background of a shell has SIGINT ignored, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    wait_for(lambda: any(tmp_path.glob(".o.packing/work/all/journal.jsonl")), process)
    process.send_signal(number)
    stderr = process.communicate(timeout=10)[1]
    assert process.returncode == code
    assert "run the same command again to go on" in stderr
    assert "Traceback" not in stderr
    assert not out.exists()


def interrupted(source: Path, out: Path) -> Path:
    """The staging folder of a build that was stopped at half."""
    staging = out.parent / f".{out.name}.packing"
    journal = staging / "work" / "all" / "journal.jsonl"
    process = subprocess.Popen(command(source, out, "--workers", "2"), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)  # fmt: skip
    wait_for(lambda: journal.exists() and journal.read_bytes().count(b'"unit"') > 2, process)
    process.kill()
    process.wait()
    assert staging.exists()
    return staging


def test_damage_done_meanwhile_is_redone(source: Path, reference: Path, tmp_path: Path) -> None:
    out = tmp_path / reference.name
    staging = interrupted(source, out)
    for path in [*staging.glob("work/all/units/*/*"), *staging.glob("store/*")]:
        if path.stat().st_size:
            truncate(path, path.stat().st_size // 2) if path.suffix == ".data" else flip_byte(path, -1)
    if out.suffix:
        (staging / "work" / "all" / "data.identity").write_text("before the power failed")
    assert run(source, out).returncode == 0
    assert tree(out) == tree(reference)


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (("--seed", "5"), "recipe seed (was 0, is 5)"),
        pytest.param(("--quality", "50"), "recipe quality (was 90, is 50)", marks=pytest.mark.slow),
    ],
)
def test_another_recipe_is_not_mixed_in(
    options: tuple[str, ...], difference: str, source: Path, tmp_path: Path
) -> None:
    interrupted(source, tmp_path / "o")
    refused = run(source, tmp_path / "o", *options)
    assert refused.returncode == 1
    assert difference in refused.stderr
    assert "--no-resume" in refused.stderr
    assert run(source, tmp_path / "o", *options, "--no-resume").returncode == 0


def test_another_listing_is_not_mixed_in(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 1500)
    interrupted(source, tmp_path / "o")
    make_photos(source, 1, seed=9)
    refused = run(source, tmp_path / "o")
    assert refused.returncode == 1
    assert "the source's files (names, sizes or times changed)" in refused.stderr


def test_two_builds_of_one_target_do_not_mix(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    first = subprocess.Popen(command(source, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for((tmp_path / ".o.packing" / "lock").exists, first)
    second = run(source, out)
    assert second.returncode == 1
    assert f"another build is writing {str(out)!r} (process {first.pid}" in second.stderr
    assert first.wait() == 0


@pytest.mark.parametrize(
    "holder",
    [
        {"host": "HERE", "pid": 2**22 + 1, "started": 1},
        {"host": "HERE", "pid": 1, "started": 12345},
        {"host": "elsewhere", "pid": 1, "started": 1},
    ],
)
def test_a_stale_lock_is_no_obstacle(holder: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps(holder | {"host": os.uname().nodename if holder["host"] == "HERE" else holder["host"]}))
    os.utime(path, (1, 1))
    lock = Lock(path, tmp_path / "o")
    lock.acquire()
    assert json.loads(path.read_text())["pid"] == os.getpid()
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_of_another_host_with_a_heartbeat_holds(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(json.dumps({"host": "elsewhere", "pid": 7, "started": 1}))
    with pytest.raises(OutputError, match="process 7 on elsewhere"):
        Lock(tmp_path / "lock", tmp_path / "o").acquire()


def test_a_journal_line_cut_short_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    done = UnitDone(3, 1, 0, 1, 1, data=(1, 2), rows=(3, 4), samples=1, records=1)
    Journal(path).add(done)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert Journal(path).load().units == {}
    Journal(path).add(done)  # behind the half line
    assert Journal(path).load().units == {3: done}


def test_resuming_with_other_options_names_them(source: Path, tmp_path: Path) -> None:
    interrupted(source, tmp_path / "o")
    with pytest.raises(ResumeError, match=r"recipe resize \(was \[48\], is \[32\]\)"):
        build(str(source), str(tmp_path / "o"), Recipe(**(RECIPE | {"resize": (32,)}), shard_bytes=1_000_000))  # type: ignore[arg-type]
