"""Every case of a corpus comes out as its `case.json` says, in each container that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.corpus.cases import HOW, VARIABLE, Case, found_cases, load_case
from tests.corpus.commands import why_later
from tests.corpus.expectations import problems_of
from tests.corpus.scene import Scene
from tests.corpus.steps import take
from tests.corpus.vocabulary import unknown

if TYPE_CHECKING:
    from pathlib import Path

CASES = found_cases()
pytestmark = [
    pytest.mark.skipif(not CASES, reason=f"{VARIABLE} is not set: {HOW}"),
    pytest.mark.usefixtures("careless_libraries"),
]


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_case(folder: Path, tmp_path: Path) -> None:
    case = load_case(folder)
    assert unknown(case.document) == []
    if later := why_later(case.run):
        pytest.skip(later)
    scenes = [Scene(case, name, case.copy(tmp_path / name / case.id)) for name in case.containers]
    if case.steps:
        take(scenes, case.steps)
    else:
        build(scenes)
    found = {scene.container: problems_of(scene) for scene in scenes}
    assert not any(found.values()), report(case, found)


def build(scenes: list[Scene]) -> None:
    """The one build of a case without steps, in all containers at a time."""
    for scene, running in [(scene, scene.start("out", {})) for scene in scenes]:
        scene.note("out", running.wait())


def report(case: Case, found: dict[str, list[str]]) -> str:
    """What is wrong, a line each."""
    lines = [f"{container}: {text}" for container, problems in found.items() for text in problems]
    return "\n".join([f"{case.id}: {case.document['what']}", *lines])
