"""Killed at any moment, parent or workers: no orphan, no half store, and the bytes of an undisturbed build."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from packer import Job, Recipe, build
from tests.conftest import make_photos, make_serials
from tests.faults import tree

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS = ("--resize", "48", "--fit", "crop", "--encode", "png", "--workers", "2")
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,500 JPEGs: six units."""
    return make_photos(tmp_path_factory.mktemp("deaths") / "src", 1500)


@pytest.fixture(scope="module")
def references(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """Undisturbed builds, by the name of the target."""
    folder, found = tmp_path_factory.mktemp("references"), {}
    for name in ("o", "o.lmdb"):
        subprocess.run(command(source, folder / name), check=True)
        found[name] = tree(folder / name)
    return found


def command(source: Path, out: Path) -> list[str]:
    size = [] if out.suffix else ["--size", "1MB"]
    return [sys.executable, "-m", "packer", "build", str(source), str(out), *OPTIONS, *size, "--quiet"]


def processes() -> dict[int, tuple[int, str]]:
    """Parent and command of every process that runs."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if state not in "ZX":
                found[int(entry.name)] = int(parent), text
    return found


def below(pid: int) -> list[int]:
    """All processes that a process started, and that those did."""
    known, family = processes(), [pid]
    for member in family:
        family += [child for child, (parent, _) in known.items() if parent == member]
    return family[1:]


def workers_of(pid: int) -> list[int]:
    """The workers of a build: what its server has forked."""
    known = processes()
    servers = [child for child, (parent, text) in known.items() if parent == pid and "forkserver" in text]
    return [child for child, (parent, _) in known.items() if parent in servers]


class Running:
    """A build that is under way."""

    def __init__(self, source: Path, out: Path, command: Callable[[Path, Path], list[str]] = command) -> None:
        self.out = out
        self.staging = out.parent / f".{out.name}.packing"
        self.process = subprocess.Popen(
            command(source, out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def wait_for(self, holds: Callable[[], Any]) -> None:
        while self.process.poll() is None and not holds():
            time.sleep(0.002)

    def units_done(self) -> int:
        journal = self.staging / "work" / "all" / "journal.jsonl"
        return journal.read_bytes().count(b'"unit"') if journal.exists() else 0

    def end(self) -> str:
        stderr = self.process.communicate(timeout=120)[1]
        assert "Traceback" not in stderr
        return stderr


def until_gone(pids: list[int]) -> list[int]:
    """Those that still run after five seconds."""
    deadline = time.monotonic() + 5
    while (alive := [pid for pid in pids if pid in processes()]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


MOMENTS = [0, 2, *(pytest.param(n, marks=SLOW) for n in range(3, 21))]


@pytest.mark.parametrize("name", ["o", "o.lmdb"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_parent_is_killed(
    moment: int, name: str, source: Path, references: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    running = Running(source, tmp_path / name)
    running.wait_for(lambda: running.units_done() >= min(moment, 5))
    time.sleep(random.Random(moment).uniform(0, 0.3) if moment else 0)
    family = below(running.process.pid)
    running.process.kill()
    running.end()
    assert until_gone(family) == []
    assert not running.out.exists() or tree(running.out) == references[name]
    # One killed while it cleaned up has left a store and remains: the next build here removes those.
    again = ["--overwrite"] if running.out.exists() else []
    subprocess.run([*command(source, running.out), *again], check=True)
    assert tree(running.out) == references[name]
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("name", "victims"),
    [("o", 2), ("o.lmdb", 1), pytest.param("o", 1, marks=SLOW), pytest.param("o.lmdb", 2, marks=SLOW)],
)
@pytest.mark.parametrize("moment", MOMENTS)
def test_workers_are_killed(  # noqa: PLR0917 - fixtures and parameters
    moment: int, name: str, victims: int, source: Path, references: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    running = Running(source, tmp_path / name)
    running.wait_for(lambda: len(workers_of(running.process.pid)) == 2 and running.units_done() >= min(moment, 4))
    time.sleep(random.Random(moment).uniform(0, 0.2) if moment else 0)
    killed = workers_of(running.process.pid)[:victims]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    stderr = running.end()
    assert running.process.returncode == 0, stderr
    assert tree(running.out) == references[name]
    named = {int(found) for found in re.findall(r"note: worker process (\d+) was ended by SIGKILL", stderr)}
    assert named <= set(killed)


def test_workers_that_keep_dying_end_the_build_and_it_can_be_resumed(
    source: Path, references: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    running = Running(source, tmp_path / "o")

    def kill_every_worker() -> bool:
        for pid in workers_of(running.process.pid):
            if "forkserver" in processes().get(pid, (0, ""))[1]:
                with suppress(ProcessLookupError):  # it may have ended meanwhile
                    os.kill(pid, signal.SIGKILL)
        return False

    running.wait_for(kill_every_worker)
    stderr = running.end()
    assert running.process.returncode == 1
    assert re.search(r"^error: worker process \d+ was ended by SIGKILL", stderr, re.MULTILINE)
    assert not running.out.exists()
    subprocess.run(command(source, running.out), check=True)
    assert tree(running.out) == references["o"]


@pytest.fixture
def disk(tmp_path: Path) -> Any:
    """A file system of its own; `disk(size)` gives it that many bytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False, stderr=-1)
    if made.returncode:
        pytest.skip("a file system cannot be mounted here")

    def resize(size: int) -> Path:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)
        return folder

    yield resize
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize(
    "size", [200_000, *(pytest.param(n, marks=SLOW) for n in (70_000, *range(10**6, 14 * 10**6, 10**6)))]
)
@pytest.mark.parametrize("name", ["o", "o.lmdb"])
def test_the_disk_is_full(
    name: str, size: int, source: Path, references: dict[str, dict[str, bytes]], disk: Callable[[int], Path]
) -> None:
    out = disk(size) / name
    full = subprocess.run(command(source, out), check=False, capture_output=True, text=True)
    if full.returncode == 0:
        assert size > sum(map(len, references[name].values()))
    else:
        assert full.returncode == 1, full.stderr
        assert re.search(
            r"^error: (no space left while|about .* will be needed|.*another build)", full.stderr, re.MULTILINE
        )
        assert len(full.stderr.splitlines()) == 1, full.stderr
        assert not out.exists()
        disk(100_000_000)
        subprocess.run(command(source, out), check=True)
    assert tree(out) == references[name]


@pytest.mark.parametrize("limit", [40_000, *(pytest.param(n, marks=SLOW) for n in (5_000, 300_000, 900_000))])
@pytest.mark.parametrize("name", ["o", "o.lmdb"])
def test_files_may_not_grow(
    name: str, limit: int, source: Path, references: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    import resource

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    out = tmp_path / name
    full = subprocess.run(command(source, out), check=False, capture_output=True, text=True, preexec_fn=limited)
    assert full.returncode == 1, full.stderr
    assert full.stderr.startswith("error: no space left while"), full.stderr
    assert len(full.stderr.splitlines()) == 1, full.stderr
    assert not out.exists()
    subprocess.run(command(source, out), check=True)
    assert tree(out) == references[name]


def test_small_jobs_start_no_process(tmp_path: Path) -> None:
    source = make_serials(tmp_path / "src", 40)
    program = (
        "import sys, packer\n"
        "from multiprocessing import forkserver\n"
        "packer.build(sys.argv[1], sys.argv[2], packer.Recipe())\n"
        "print(forkserver._forkserver._forkserver_pid, 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(source), str(tmp_path / "o")], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["None", "False"]


def test_fragments_may_lie_on_another_disk(source: Path, disk: Callable[[int], Path], tmp_path: Path) -> None:
    tmp = disk(100_000_000)
    recipe: dict[str, Any] = {"resize": (48,), "fit": "crop"}
    build(str(source), str(tmp_path / "here"), Recipe(**recipe), Job(workers=2))
    build(str(source), str(tmp_path / "there"), Recipe(**recipe), Job(workers=2, tmp=str(tmp)))
    assert tree(tmp_path / "here") == tree(tmp_path / "there")
    assert list(tmp.iterdir()) == []
