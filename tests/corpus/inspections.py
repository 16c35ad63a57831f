"""What a step may look at: the questions of `check`."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING, Any

import pytest

import packer_reader
from packer_reader.errors import StoreError
from tests.corpus import processes
from tests.corpus.built import is_store, tree
from tests.corpus.commands import verify_command
from tests.corpus.expectations import alternatives, problems_of_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.corpus.scene import Scene

__all__ = ["CHECKS", "check"]


def _complete(scene: Scene, target: str) -> list[str]:
    path = scene.place(target)
    if not is_store(path):
        return [f"{target!r} is no complete store"]
    verified = processes.run(verify_command(path), scene.root)
    if verified.code:
        return [f"{target!r} is damaged: {verified}"]
    built = scene.built(path)
    return min((problems_of_store(expect, built) for expect in alternatives(scene.case.expect)), key=len)


def _absent_or_complete(scene: Scene, target: str) -> list[str]:
    path = scene.place(target)
    if is_store(path):
        return _complete(scene, target)
    with pytest.raises(StoreError):
        packer_reader.open(path)
    return []


def _no_empty_shard(scene: Scene, target: str) -> list[str]:
    built = scene.built(scene.place(target))
    problems = [f"shards hold {sizes} samples" for sizes in [built.store.container_sizes.tolist()] if 0 in sizes]
    for shard in built.shards:
        if shard.suffix == ".tar":
            with tarfile.open(shard) as archive:
                problems += [] if archive.getnames() else [f"{shard.name} is empty"]
    return problems


def _equal_bytes(scene: Scene, target: list[str]) -> list[str]:
    one, other = (tree(scene.place(name)) for name in target)
    return [f"{name} differs in {target}" for name in sorted(one.keys() | other) if one.get(name) != other.get(name)]


def _no_temp_left(scene: Scene, target: str) -> list[str]:
    folder = scene.root / target
    known = scene.entries.get(folder, set()) | {path.name for path in scene.outputs}
    return [f"{entry.name!r} was left in {target!r}" for entry in folder.iterdir() if entry.name not in known]


CHECKS: dict[str, Callable[[Scene, Any], list[str]]] = {
    "complete": _complete,
    "absent_or_complete": _absent_or_complete,
    "no_empty_shard": _no_empty_shard,
    "equal_bytes": _equal_bytes,
    "no_temp_left": _no_temp_left,
}


def check(scene: Scene, step: dict[str, Any]) -> None:
    """Ask what `what` says."""
    scene.problems += CHECKS[step["what"]](scene, step["target"])
