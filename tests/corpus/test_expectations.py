"""Each expectation accepts a run that meets it, and refuses the same run when it says something else."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.corpus.cases import Case
from tests.corpus.conftest import EXPECT
from tests.corpus.expectations import ABOUT_RUNS, ABOUT_STORES, problems_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.corpus.scene import Scene

pytestmark = pytest.mark.usefixtures("careless_libraries")


def problems(scene: Scene, **changes: Any) -> list[str]:
    document = {**scene.case.document, "expect": EXPECT | changes}
    return problems_of(replace(scene, case=Case(scene.case.folder, document)))


CASES: list[tuple[str, Any, Any]] = [
    ("error", False, True),
    ("n_samples", 4, 5),
    ("n_samples", None, 3),
    ("n_skipped", 1, 0),
    ("samples", [{"name": "a/00003.png", "serial": 3}], [{"name": "a/00003.png", "serial": 2}]),
    ("samples", [{"name": "a/00003.png", "label": 0}], [{"name": "a/00004.png"}]),
    ("samples_add", [{"name": "b/00001.png"}], [{"name": "b/broken.png"}]),
    ("skipped", [{"name": "b/broken.png"}], [{"name": "b/notes.txt"}]),
    ("skipped", [{"name": "b/broken.png"}], [{"name": "b/broken.png"}, {"name": "b/notes.txt"}]),
    ("may_skip", ["b/broken.png"], ["b/gone.png"]),
    ("ignored", ["b/notes.txt"], ["b/00001.png"]),
    ("labels", {"b/00001.png": 1}, {"b/00001.png": 0}),
    ("texts", {}, {"b/00001.png": "text"}),
    ("captions", {}, {"b/00001.png": "text"}),
    ("rows", [], [{"id": 1}]),
    ("classes", {"a": 0, "b": 1, "c": 2}, {"a": 0, "b": 1}),
    ("shuffled", True, False),
    ("keys_unique", True, False),
    ("wds_groups", 4, 5),
    ("names_roundtrip", True, False),
    ("no_absolute_paths_in_manifest", True, None),
    ("classes_by_leaf", True, None),
    ("must_exist", ["src/b/notes.txt", "out/manifest.json"], ["out/notes.txt"]),
    ("must_not_exist", ["../canary", "out/notes.txt"], ["src/a"]),
    ("source_unchanged", True, None),
    ("max_seconds", 100, 0.001),
    ("max_rss_mb", 10_000, 1),
    ("warned", True, False),
]


@pytest.mark.parametrize(("key", "right", "wrong"), CASES)
def test_right_is_told_from_wrong(key: str, right: Any, wrong: Any, scene: Scene) -> None:
    assert problems(scene, **{key: right}) == []
    assert wrong is None or problems(scene, **{key: wrong}) != []


def test_every_expectation_is_tested() -> None:
    assert {key for key, *_ in CASES} | {"steps_error"} == ABOUT_RUNS.keys() | ABOUT_STORES.keys()


def test_one_acceptable_outcome_is_enough(scene: Scene) -> None:
    wrong = {"n_samples": 9, "classes": {}}
    assert (
        problems(scene, **wrong, **{"or": [{"error": True}, {"n_samples": 4, "classes": {"a": 0, "b": 1, "c": 2}}]})
        == []
    )
    assert problems(scene, **wrong, **{"or": [{"error": True}, {"n_samples": 4}]}) != []


def test_a_refused_read_is_an_outcome_only_where_the_case_says_so(scene: Scene) -> None:
    refused = replace(scene, refusals=["too few samples"])
    assert problems(refused) != []
    assert problems(refused, **{"or": [{"steps_error": "a clear error"}]}) == []
    assert problems(scene, **{"or": [{"steps_error": "a clear error"}]}) == []
    assert problems(scene, n_samples=9, **{"or": [{"steps_error": "a clear error", "n_samples": 4}]}) != []


def test_a_changed_source_is_noticed(scene: Scene, tmp_path: Path) -> None:
    case = replace(scene.case, document={**scene.case.document, "expect": EXPECT})
    shutil.copytree(scene.root, tmp_path / "case", symlinks=True)
    hurt = replace(scene, case=case, root=tmp_path / "case")
    assert problems_of(hurt) == []
    (hurt.root / "src" / "b" / "notes.txt").write_text("edited")
    assert any("notes.txt" in text for text in problems_of(hurt))
