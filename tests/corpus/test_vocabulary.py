"""A key or word that nothing acts on fails a case, wherever it stands."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.corpus.test_corpus import test_case as run_case
from tests.corpus.vocabulary import unknown

if TYPE_CHECKING:
    from pathlib import Path

CASE: dict[str, Any] = {
    "schema": 1,
    "id": "x",
    "kind": "made up",
    "what": "every place where a key can stand",
    "log": [],
    "not_created": [],
    "run": {
        "cmd": "either",
        "source_type": "imagefolder",
        "source": "src",
        "mode": "rgb",
        "resize": {"short": 8},
        "on_error": "skip",
        "want_shards": 2,
        "steps": [
            {"op": "build", "to": "out", "exit": "zero", "options": {"seed": 1, "commit_every": 25}},
            {"op": "change", "what": "truncate", "target": "out:last_shard"},
            {"op": "check", "what": "complete", "target": "out"},
            {"op": "read", "from": "out", "world": 1, "workers": 0, "batch": 4, "buffer": 8, "union": None},
        ],
    },
    "expect": {
        "error": False,
        "n_samples": 1,
        "n_skipped": 1,
        "samples": [{"name": "a/1.png", "serial": 1, "serial_tol": 3, "mask_quad": [0, 1, 2, 3]}],
        "skipped": [{"name": "a/2.png", "why": "for people"}],
        "notes": "for people",
        "or": [{"n_samples": 2, "samples_add": [{"name": "a/2.png", "label": 0}], "may_skip": [], "notes2": ""}],
    },
}
STEPS = ("run", "steps")


def changed(place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    document = copy.deepcopy(CASE)
    held: Any = document
    for key in place[:-1]:
        held = held[key]
    held[place[-1]] = value
    return document


def test_known_keys_are_known() -> None:
    assert unknown(CASE) == []


@pytest.mark.parametrize(
    "place",
    [
        ("bogus",),
        ("run", "bogus"),
        ("run", "resize", "bogus"),
        ("run", "path_col"),
        (*STEPS, 0, "bogus"),
        (*STEPS, 0, "world"),
        (*STEPS, 0, "options", "bogus"),
        (*STEPS, 1, "bogus"),
        (*STEPS, 3, "bogus"),
        ("expect", "bogus"),
        ("expect", "may_skip"),
        ("expect", "samples", 0, "bogus"),
        ("expect", "skipped", 0, "bogus"),
        ("expect", "or", 0, "bogus"),
        ("expect", "or", 0, "or"),
        ("expect", "or", 0, "samples_add", 0, "bogus"),
    ],
)
def test_an_unknown_key_is_found(place: tuple[Any, ...]) -> None:
    (found,) = unknown(changed(place, 1))
    assert found.endswith(place[-1])


@pytest.mark.parametrize(
    ("place", "word"),
    [
        (("schema",), "2"),
        (("run", "cmd"), "both"),
        (("run", "source_type"), "zip"),
        (("run", "mode"), "lab"),
        (("run", "on_error"), "ask"),
        ((*STEPS, 0, "op"), "rebuild"),
        ((*STEPS, 0, "exit"), "two"),
        ((*STEPS, 1, "what"), "melt"),
        ((*STEPS, 1, "target"), "out:any_shard"),
        ((*STEPS, 2, "what"), "truncate"),
        ((*STEPS, 3, "union"), "most"),
        ((*STEPS, 3, "start"), "thread"),
        ((*STEPS, 3, "probe"), "torch_rand"),
        (("expect", "error"), "perhaps"),
    ],
)
def test_an_unknown_word_is_found(place: tuple[Any, ...], word: str) -> None:
    assert any(word.rsplit(":", maxsplit=1)[-1] in text for text in unknown(changed(place, word)))


@pytest.mark.parametrize("source_type", ["imagefolder", "mask-pairs"])
def test_a_case_with_an_unknown_key_fails(source_type: str, tmp_path: Path) -> None:
    document = changed(("expect", "bogus"), 1)
    document["run"]["source_type"] = source_type
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "case.json").write_text(json.dumps(document))
    with pytest.raises(AssertionError, match=r"expect\.bogus"):
        run_case(folder, tmp_path)
