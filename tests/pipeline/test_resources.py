"""What a build takes of the machine: by affinity, cgroups, the largest file; and the disk, from the first unit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from packer import Job, Recipe, build
from packer.estimate import fitting_pixels, fitting_workers, in_flight, worker_memory
from packer.job import Silent
from packer.resources import Room, fitted
from packer_reader.errors import OutputError, ResumeError
from packer_reader.machine import own_cgroups, usable_cpus, usable_memory
from tests.conftest import make_photos, make_serials

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


def test_memory_is_the_least_of_machine_and_cgroups(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       16777216 kB\nMemFree: 1 kB\n")
    assert usable_memory(tmp_path / "meminfo", [tmp_path]) == 16 * GIB
    (tmp_path / "memory.max").write_text("max\n")
    assert usable_memory(tmp_path / "meminfo", [tmp_path]) == 16 * GIB
    (tmp_path / "memory.max").write_text(f"{4 * GIB}\n")
    assert usable_memory(tmp_path / "meminfo", [tmp_path]) == 4 * GIB
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{2 * GIB}\n")
    assert usable_memory(tmp_path / "meminfo", [tmp_path]) == 2 * GIB


def test_limits_may_stand_in_any_cgroup_above(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/slurm/job_7/step_0\n4:cpu,cpuacct:/jobs/7\n")
    folders = own_cgroups(own, tmp_path)
    assert tmp_path / "slurm" / "job_7" / "step_0" in folders
    assert tmp_path / "slurm" in folders
    assert tmp_path / "cpu" / "jobs" in folders
    (tmp_path / "slurm" / "job_7").mkdir(parents=True)
    (tmp_path / "slurm" / "job_7" / "memory.max").write_text(str(GIB))
    assert usable_memory(tmp_path / "gone", folders) == GIB
    (tmp_path / "slurm" / "job_7" / "cpu.max").write_text("100000 100000")
    assert usable_cpus({}, folders) == 1


def test_workers_are_no_more_than_memory_holds() -> None:
    recipe = Recipe()
    assert fitting_workers(8, 64 * GIB, recipe, 10**6) == 8
    assert fitting_workers(8, 2 * GIB, recipe, 10**6) == int(0.9 * 2 * GIB) // worker_memory(recipe, 10**6) < 8
    assert fitting_workers(8, 1, recipe, 10**6) == 1


def test_the_pixel_limit_follows_memory_and_not_workers() -> None:
    assert fitting_pixels(64 * GIB, Recipe()) == Recipe().max_pixels
    assert 10**7 < fitting_pixels(GIB, Recipe()) < Recipe().max_pixels
    assert fitting_pixels(GIB, Recipe(bits=16)) < fitting_pixels(GIB, Recipe())


def test_a_lowered_limit_is_said_and_stands_in_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()

    class Heard(Silent):
        def say(self, text: str) -> None:
            said.append(text)

    monkeypatch.setattr("packer.resources.usable_memory", lambda: GIB)
    (recipe,) = fitted([Recipe()], Job(watcher=Heard()))
    assert recipe.max_pixels == fitting_pixels(GIB, Recipe())
    limit = recipe.max_pixels
    assert said == [f"memory is short: images over {limit:,} pixels are skipped, as with --max-pixels {limit}"]


def test_fragments_in_flight_are_bounded() -> None:
    recipe = Recipe(shard_bytes=10**6)
    assert in_flight(recipe, 2, 1000.0, 100) == 100_000
    assert in_flight(recipe, 2, 1000.0, 10**9) == 8 * recipe.unit * 1000 + 2 * 10**6


def test_a_store_that_will_not_fit_is_refused_after_the_first_unit(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 40)
    room = Room(10**13, tmp_path, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packer.convert.Room", lambda *_: room)
        with pytest.raises(OutputError, match=r"about .* TB will be needed in .* are free: make room"):
            build(str(source), str(tmp_path / "o"), Recipe(unit=20), Job(workers=1))
    assert not (tmp_path / "o").exists()
    assert build(str(source), str(tmp_path / "o"), Recipe(unit=20), Job(workers=1)).written == 40


@pytest.mark.parametrize(
    ("entry", "value", "difference"),
    [
        ("versions", {"simplejpeg": "0.1"}, "versions simplejpeg (was '0.1', is"),
        ("classes", ["x"], "the classes"),
        ("listing", "0" * 64, "the source's files"),
    ],
)
def test_another_version_or_source_is_not_resumed(
    entry: str, value: Any, difference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_serials(tmp_path / "src", 20)
    monkeypatch.setattr("packer.convert.publish", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        build(str(source), str(tmp_path / "o"), Recipe(), Job(workers=1))
    monkeypatch.undo()
    note = tmp_path / ".o.packing" / "job.json"
    identity = json.loads(note.read_text())
    identity[entry] = identity[entry] | value if isinstance(value, dict) else value
    note.write_text(json.dumps(identity))
    with pytest.raises(ResumeError) as refused:
        build(str(source), str(tmp_path / "o"), Recipe(), Job(workers=1))
    assert difference in str(refused.value)


def test_fragments_elsewhere_are_taken_away_whichever_way_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_serials(tmp_path / "src", 20)
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    monkeypatch.setattr("packer.convert.publish", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    for tmp in (one, two):
        with pytest.raises(KeyboardInterrupt):
            build(str(source), str(tmp_path / "o"), Recipe(), Job(workers=1, tmp=str(tmp)))
    assert (list(one.iterdir()), len(list(two.iterdir()))) == ([], 1)
    monkeypatch.undo()
    build(str(source), str(tmp_path / "o"), Recipe(), Job(workers=1))
    assert list(two.iterdir()) == []


def test_building_again_and_again_opens_no_more_files(tmp_path: Path) -> None:
    import os

    source = make_serials(tmp_path / "src", 6)
    counts = []
    for number in range(8):
        build(str(source), str(tmp_path / f"o{number}"), Recipe(), Job(workers=1))
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[-1] == counts[-2]
