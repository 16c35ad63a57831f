"""What a step may do to an output: the accidents of `change`."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.corpus.scene import Scene

__all__ = ["CHANGES", "PARTS", "change"]

Step = dict[str, Any]
PARTS: Mapping[str, Callable[[Path], Path]] = {
    "first_shard": lambda store: _shards(store)[0],
    "last_shard": lambda store: _shards(store)[-1],
    "manifest": lambda store: store / "manifest.json",
}
"""What may stand behind `OUTPUT:` in a target."""


def _shards(store: Path) -> list[Path]:
    return sorted(store.glob("*.tar")) or [store / "data.mdb"]


def _find(scene: Scene, target: str) -> Path:
    name, _, part = target.partition(":")
    path = scene.place(name)
    return PARTS[part](path) if part else path


def _hurt(scene: Scene, path: Path) -> None:
    """Outputs that hold this path need not be complete any more."""
    scene.good -= {output for output in scene.good if path.is_relative_to(output)}


def _truncate(scene: Scene, step: Step) -> None:
    path = _find(scene, step["target"])
    data = path.read_bytes()
    assert data
    path.write_bytes(data[: len(data) // 2])
    _hurt(scene, path)


def _delete(scene: Scene, step: Step) -> None:
    path = _find(scene, step["target"])
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    _hurt(scene, path)


def _replace(scene: Scene, step: Step) -> None:
    path, other = _find(scene, step["target"]), _find(scene, step["with"])
    assert path.read_bytes() != other.read_bytes()
    shutil.copyfile(other, path)
    _hurt(scene, path)


def _bitflip(scene: Scene, step: Step) -> None:
    path = _find(scene, step["target"])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    _hurt(scene, path)


def _rename(scene: Scene, step: Step) -> None:
    path, new = _find(scene, step["target"]), scene.place(step["to"])
    new.parent.mkdir(parents=True, exist_ok=True)
    path.rename(new)
    if path in scene.good:
        scene.good = scene.good - {path} | {new}


def _copy(scene: Scene, step: Step) -> None:
    path, new = _find(scene, step["target"]), scene.place(step["to"])
    shutil.copytree(path, new)
    if path in scene.good:
        scene.good.add(new)


def _add_file(scene: Scene, step: Step) -> None:
    path = scene.place(step["target"])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(b"added\n")


def _edit_manifest(scene: Scene, step: Step) -> None:
    path = _find(scene, step["target"]) / "manifest.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"samples": document["samples"] + 1}))
    _hurt(scene, path)


CHANGES: dict[str, Callable[[Scene, Step], None]] = {
    "truncate": _truncate,
    "delete": _delete,
    "replace": _replace,
    "bitflip": _bitflip,
    "rename_dir": _rename,
    "copy_dir": _copy,
    "add_file": _add_file,
    "edit_manifest": _edit_manifest,
}


def change(scene: Scene, step: Step) -> None:
    """Do to an output what `what` says."""
    CHANGES[step["what"]](scene, step)
