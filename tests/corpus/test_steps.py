"""Steps do what they say, and the questions that follow them find it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.corpus.built import tree
from tests.corpus.changes import CHANGES
from tests.corpus.inspections import CHECKS
from tests.corpus.scene import Scene
from tests.corpus.steps import take

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def own(scene: Scene, tmp_path: Path) -> Scene:
    """The case that was run, to be changed."""
    shutil.copytree(scene.root, tmp_path / "case", symlinks=True)
    return Scene(scene.case, "tar", tmp_path / "case", list(scene.done), {tmp_path / "case" / "out"})


DAMAGES: list[dict[str, Any]] = [
    {"what": "truncate", "target": "out:first_shard"},
    {"what": "delete", "target": "out:last_shard"},
    {"what": "delete", "target": "out"},
    {"what": "replace", "target": "out:manifest", "with": "out:first_shard"},
    {"what": "bitflip", "target": "out:last_shard"},
    {"what": "edit_manifest", "target": "out"},
]


@pytest.mark.parametrize("step", DAMAGES, ids=[step["what"] for step in DAMAGES])
def test_damage_is_done_and_found(step: dict[str, Any], own: Scene) -> None:
    before = tree(own.root / "out")
    take([own], [{"op": "change", **step}])
    assert own.problems == []
    assert own.good == set()
    assert tree(own.root / "out") != before
    assert CHECKS["complete"](own, "out") != []


def test_renamed_and_copied_outputs_stay_good(own: Scene) -> None:
    rename = {"op": "change", "what": "rename_dir", "target": "out", "to": "else where/moved"}
    copy = {"op": "change", "what": "copy_dir", "target": "else where/moved", "to": "copy"}
    take([own], [rename, copy, {"op": "check", "what": "equal_bytes", "target": ["else where/moved", "copy"]}])
    assert own.problems == []
    assert own.good == {own.root / "else where" / "moved", own.root / "copy"}
    take([own], [{"op": "change", "what": "add_file", "target": "copy/extra"}])
    assert CHECKS["equal_bytes"](own, ["else where/moved", "copy"]) == ["extra differs in ['else where/moved', 'copy']"]


def test_left_overs_and_whole_shards(own: Scene) -> None:
    assert CHECKS["no_temp_left"](own, ".") == []
    assert CHECKS["no_empty_shard"](own, "out") == []
    (own.root / ".out.packing").mkdir()
    assert CHECKS["no_temp_left"](own, ".") == ["'.out.packing' was left in '.'"]


def test_an_output_is_absent_or_complete(own: Scene) -> None:
    assert CHECKS["absent_or_complete"](own, "out") == []
    take([own], [{"op": "change", "what": "delete", "target": "out:first_shard"}])
    assert CHECKS["absent_or_complete"](own, "out") != []
    assert CHECKS["absent_or_complete"](own, "nothing") == []


def test_an_unexpected_exit_ends_the_steps(own: Scene) -> None:
    take([own], [{"op": "build", "to": "out", "exit": "zero"}, {"op": "change", "what": "delete", "target": "out"}])
    (problem,) = own.problems
    assert problem.startswith("step 0 (build): exit zero was expected")
    assert (own.root / "out").exists()


@pytest.mark.parametrize("after", [0.05, 60.0])
def test_a_signal_must_come_in_time(after: float, own: Scene) -> None:
    take([own], [{"op": "signal", "to": "new", "sig": "KILL", "when": "after_s", "after_s": after}])
    assert (own.problems == []) == (after < 1)


def test_every_change_and_check_is_tested() -> None:
    assert {step["what"] for step in DAMAGES} | {"rename_dir", "copy_dir", "add_file"} == CHANGES.keys()
    assert len(CHECKS) == 5


READ = {"op": "read", "from": "out", "world": 2, "workers": 0, "batch": 1, "buffer": 8, "union": "each-once"}


def test_reads_are_compared(own: Scene) -> None:
    steps = [
        READ | {"id": "one", "epochs": 2, "epochs_differ": True},
        READ | {"same_as": "one", "epochs": 2, "seed": 1},
    ]
    take([own], steps)
    assert own.problems == ["step 1 (read): the order is not that of read 'one'"]


def test_a_read_that_should_fail_and_does_not_is_a_problem(own: Scene) -> None:
    take([own], [READ | {"error": "any"}, READ | {"error": True}])
    assert own.problems == ["step 1 (read): reading 'out' should have raised an error"]


def test_a_read_is_refused_before_its_first_batch(own: Scene) -> None:
    take([own], [READ | {"world": 3}])
    assert own.problems == []
    assert ["reading 'out' was refused" in text for text in own.refusals] == [True]


def test_a_read_breaks_off_behind_its_first_batch(own: Scene) -> None:
    (shard,) = own.built(own.root / "out").shards
    data = bytearray(shard.read_bytes())
    data[data.rfind(b"PNG")] ^= 1
    shard.write_bytes(data)
    step = READ | {"world": 1, "buffer": 0}
    take([own], [step | {"error": True}, step])
    assert ["reading 'out' broke off" in text for text in own.problems] == [True]
    assert own.refusals == []
