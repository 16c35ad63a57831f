"""A made-up case that was run, for the tests of the checks themselves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import make_serials
from tests.corpus.cases import Case
from tests.corpus.scene import Scene
from tests.corpus.steps import take

RUN = {"cmd": "shard", "source_type": "imagefolder", "source": "src", "mode": "rgb", "resize": None, "on_error": "skip"}
NAMES = ["a/00000.png", "b/00001.png", "c/00002.png", "a/00003.png"]
EXPECT: dict[str, Any] = {
    "error": False,
    "n_samples": 4,
    "n_skipped": 1,
    "samples": [{"name": name, "serial": number} for number, name in enumerate(NAMES)],
    "skipped": [{"name": "b/broken.png", "why": "text"}],
}


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A case that was run: four pictures, a broken one, a file of another kind, and a folder that is a loop."""
    folder = tmp_path_factory.mktemp("case")
    source = make_serials(folder / "src", 4)
    (source / "b" / "broken.png").write_text("no picture")
    (source / "b" / "notes.txt").write_text("notes")
    (source / "c" / "loop").symlink_to("..")
    case = Case(folder, {"what": "made up", "run": RUN, "expect": EXPECT})
    found = Scene(case, "tar", case.copy(tmp_path_factory.mktemp("scene") / "case"))
    take([found], [{"op": "build", "to": "out"}])
    return found
