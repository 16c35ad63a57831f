"""Worker processes: ended with their parent, quiet at Ctrl-C, and one error when they die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from packer import Job, Recipe, build
from packer.job import Silent
from packer.sources.imagefolder import ImageFolder
from tests.conftest import make_photos, make_serials

if TYPE_CHECKING:
    from pathlib import Path

    from packer.sample import RawSample, Ref


def test_a_pool_ends_nobody_elses_children(tmp_path: Path) -> None:
    program = (
        "import multiprocessing as mp, time\n"
        "from packer.runners.processes import ProcessRunner\n"
        "if __name__ == '__main__':\n"
        "    other = mp.get_context('spawn').Process(target=time.sleep, args=(60,)); other.start()\n"
        "    pool = ProcessRunner(1); pool.submit(int, 3).result(); pool.kill()\n"
        "    print(other.is_alive()); other.kill()\n"
    )
    path = tmp_path / "pool.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize("reached", ["lock", "refs/rows.bin", "work/all", "work/all/units", "work/all/journal.jsonl"])
def test_ctrl_c_to_the_whole_group_is_quiet(reached: str, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 900)
    process = subprocess.Popen(
        [sys.executable, "-m", "packer", "build", str(source), str(tmp_path / "o"), "--workers", "2"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while process.poll() is None and not (tmp_path / ".o.packing" / reached).exists():
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGINT)
    stderr = process.communicate(timeout=10)[1]
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "interrupted: run the same command again to go on"
    assert "Traceback" not in stderr


class _Heard(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


class _Deadly(ImageFolder):
    """A source with a sample that kills who reads it, as a crash in a codec would."""

    def read(self, ref: Ref) -> RawSample:
        if ref.name.endswith("00007.png"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(ref)


def test_a_sample_that_ends_workers_is_skipped_and_the_rest_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_serials(tmp_path / "src", 40)
    monkeypatch.setattr("packer.convert.detect", lambda paths, *_: _Deadly(tuple(paths)))
    heard = _Heard()
    report = build(str(source), str(tmp_path / "o"), Recipe(unit=5), Job(workers=2, watcher=heard))
    assert (report.found, report.written, report.errors) == (40, 39, {"crashed": 1})
    line = json.loads((tmp_path / "o" / "errors.jsonl").read_text())
    assert (line["name"], line["class"]) == ("b/00007.png", "crashed")
    assert heard.said[0].endswith("was ended by SIGKILL at 'b/00007.png'; the unit is converted again")
    assert heard.said[1].endswith("was ended by SIGKILL at 'b/00007.png'; the sample is skipped")
