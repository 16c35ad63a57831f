"""Worker processes: ended with their parent, quiet at Ctrl-C, and one error when they die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from packer import Job, Recipe, build
from packer.job import Silent
from packer.sources.imagefolder import ImageFolder
from tests.conftest import make_photos, make_serials

if TYPE_CHECKING:
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


@pytest.mark.parametrize(
    "reached",
    [
        "lock",
        "refs/rows.bin",
        pytest.param("work/all", marks=pytest.mark.slow),
        pytest.param("work/all/units", marks=pytest.mark.slow),
        "work/all/journal.jsonl",
    ],
)
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


@dataclass(frozen=True)
class _Deadly(ImageFolder):
    """A source with samples that kill who reads them, as a crash in a codec would."""

    deadly: tuple[str, ...] = ("00007.png",)

    def read(self, ref: Ref) -> RawSample:
        if ref.name.endswith(self.deadly):
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
    assert heard.said[0].endswith("was ended by SIGKILL at 'b/00007.png'; that unit is done again")
    assert heard.said[1].endswith("was ended by SIGKILL at 'b/00007.png'; the sample is skipped")


def test_a_small_job_that_was_killed_goes_on_in_processes(tmp_path: Path) -> None:
    source = make_serials(tmp_path / "src", 40)
    program = (
        "import sys\n"
        "from packer import Job, Recipe, build\n"
        "from tests.pipeline.test_workers import _Deadly\n"
        "import packer.convert\n"
        "packer.convert.detect = lambda paths, *_: _Deadly(tuple(paths))\n"
        "if __name__ == '__main__':\n"
        "    print(build(sys.argv[1], sys.argv[2], Recipe(unit=5)).errors)\n"
    )
    (tmp_path / "main.py").write_text(program)
    command = [sys.executable, str(tmp_path / "main.py"), str(source), str(tmp_path / "o")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    first = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert first.returncode == -signal.SIGKILL
    second = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert second.stdout.strip() == "{'crashed': 1}"


def test_several_deadly_samples_in_one_unit_at_two_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_serials(tmp_path / "src", 40)
    deadly = ("00007.png", "00011.png", "00030.png")
    monkeypatch.setattr("packer.convert.detect", lambda paths, *_: _Deadly(tuple(paths), deadly=deadly))
    recipes = [Recipe(resize=(side,), fit="crop", unit=40) for side in (8, 12)]
    report = build(str(source), str(tmp_path / "o"), recipes, Job(workers=2))
    assert (report.written, report.errors) == (37, {"crashed": 3})
    lines = [(tmp_path / "o" / side / "errors.jsonl").read_text() for side in ("8", "12")]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("kind", ["images", pytest.param("text", marks=pytest.mark.slow)])
def test_workers_that_die_at_the_end_of_a_unit_blame_no_sample(kind: str, tmp_path: Path) -> None:
    """Short of memory, say: the last sample is written already, and sound."""
    if kind == "images":
        make_serials(tmp_path / "src", 600)
    else:
        (tmp_path / "src").mkdir()
        (tmp_path / "src" / "d.jsonl").write_text("".join(f'{{"text": "document {n}"}}\n' for n in range(600)))
    (tmp_path / "dying.py").write_text(
        "import os\n"
        "from packer.sinks import fragment\n"
        "plain = fragment.TarFragment.arrays\n"
        "def arrays(self):\n"
        "    deaths = [name for name in os.listdir() if name.startswith('death')]\n"
        "    if len(deaths) < 2:\n"
        "        open(f'death{len(deaths)}', 'x').close()\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return plain(self)\n"
        "fragment.TarFragment.arrays = arrays\n"
        "from packer import Job, Recipe, build\n"
        "if __name__ == '__main__':\n"
        "    report = build('src', 'o', Recipe(), Job(workers=1, runner='processes'))\n"
        "    print(report.written, report.errors)\n"
    )
    done = subprocess.run([sys.executable, "dying.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "600 {}\n", done.stderr
    assert len(list(tmp_path.glob("death*"))) == 2
