"""The operations of a scenario, in order."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

from tests.corpus import reads
from tests.corpus.changes import change
from tests.corpus.inspections import check

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.corpus.processes import Running
    from tests.corpus.scene import Scene

__all__ = ["BUILDS", "EXITS", "MOMENTS", "STEPS", "take"]

Step = dict[str, Any]
EXITS: dict[str, Callable[[int], bool]] = {
    "zero": lambda code: code == 0,
    "nonzero": lambda code: code > 0,
    "any": lambda code: code >= 0,
}
MOMENTS = {"first_output": 0.02, "half": 0.5}
"""When to send a signal: once the unfinished output has this part of the source's bytes."""


def _start(scene: Scene, step: Step) -> list[Running]:
    return [scene.start(step["to"], step) for _ in range(step.get("n", 1))]


def _finish(scene: Scene, step: Step, running: list[Running]) -> None:
    """Wait for one build, or for several with one output: then one wins, and the others say why they did not."""
    ended = sorted((build.wait() for build in running), key=lambda done: -done.code)
    for done in ended:
        scene.note(step["to"], done)
        if not EXITS[step.get("exit", "zero")](done.code):
            scene.problems.append(f"exit {step.get('exit', 'zero')} was expected: {done}")
    if len(ended) > 1 and ended[-1].code:
        scene.problems.append(f"none of {len(ended)} builds succeeded: {ended[-1]}")
    path = scene.place(step["to"])
    if path in scene.good and path.suffix != ".lmdb":
        scene.problems += _odd_shards(scene, step, scene.built(path).store.container_sizes.tolist())


def _odd_shards(scene: Scene, step: Step, sizes: list[int]) -> list[str]:
    """Whether there are the shards that were asked for."""
    wanted, samples = scene.case.run.get("want_shards"), step.get("options", {}).get("samples_per_shard")
    few = wanted is None or min(2, wanted) <= len(sizes) <= wanted
    return [] if few and (samples is None or max(sizes) <= samples) else [f"shards hold {sizes} samples"]


def _signal(scene: Scene, step: Step) -> None:
    running = scene.start(step["to"], step)
    if not running.until(_moment(scene, step)):
        scene.problems.append(f"it ended before it could be signalled: {running.wait()}")
        return
    running.send(signal.Signals[f"SIG{step['sig']}"])
    done = running.wait()
    if done.hung or not done.code:
        scene.problems.append(f"SIG{step['sig']} did not end it: {done}")
    scene.problems += done.problems() if done.code > 0 else []


def _moment(scene: Scene, step: Step) -> Callable[[], bool]:
    """Whether it is time to send the signal."""
    if step["when"] == "after_s":
        end = time.monotonic() + step["after_s"]
        return lambda: time.monotonic() >= end
    target = scene.place(step["to"])
    enough = MOMENTS[step["when"]] * _size(scene.source)
    return lambda: _size(target.with_name(f".{target.name}.packing")) >= enough


def _size(folder: Path) -> int:
    """Bytes of what a folder holds, while others write in it."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if not path.is_dir() else 0
        except FileNotFoundError:
            continue
    return total


BUILDS = ("build", "parallel")
STEPS: dict[str, Callable[[Scene, Step], None]] = {
    "signal": _signal,
    "change": change,
    "check": check,
    "peek": reads.peek,
    "pickle": reads.pickled,
    "resume": reads.resume,
    "read": reads.read,
}


def take(scenes: list[Scene], steps: list[Step]) -> None:
    """Take steps in all containers, in each until one goes wrong; what comes after it would only repeat that."""
    going = list(scenes)
    for number, step in enumerate(steps):
        if step["op"] in BUILDS:  # in all containers at a time, since most of it is starting up
            for scene, running in [(scene, _start(scene, step)) for scene in going]:
                _finish(scene, step, running)
        else:
            for scene in going:
                STEPS[step["op"]](scene, step)
        for scene in going:
            scene.problems = [f"step {number} ({step['op']}): {text}" for text in scene.problems]
        going = [scene for scene in going if not scene.problems]
