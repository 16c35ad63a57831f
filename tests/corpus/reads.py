"""The steps that read: `peek`, `pickle`, `resume` and `read`."""

from __future__ import annotations

import json
import pickle
from itertools import islice
from typing import TYPE_CHECKING, Any

import packer_reader
from packer_reader import PackerError, loader
from tests.corpus.orders import Rank, data_set, foreign, read_ranks, taken, within
from tests.corpus.rules import QUESTIONS, TAILS, each_once

if TYPE_CHECKING:
    from pathlib import Path

    from packer_reader.dataloader import Loader
    from tests.corpus.scene import Scene

__all__ = ["UNIONS", "peek", "pickled", "read", "resume"]

Step = dict[str, Any]
UNIONS = ("each-once", "policy", None)
_SECONDS = 60.0


def peek(scene: Scene, step: Step) -> None:
    """Open the reader in this process, take a sample, and keep it open."""
    store = packer_reader.open(scene.place(step["from"]))
    assert store[0]
    scene.opened.append(store)


def pickled(scene: Scene, step: Step) -> None:
    """A reader that was used and pickled reads the same."""
    path = scene.place(step["from"])
    store = packer_reader.open(path)
    before = [store.encoded(number) for number in range(len(store))]
    clone = pickle.loads(pickle.dumps(store))
    if [clone.encoded(number) for number in range(len(clone))] != before:
        scene.problems.append("an unpickled store reads other samples")
    stream = data_set(path, {"batch": 4, "buffer": 8})
    with within(_SECONDS):
        assert next(iter(stream))
        copied = pickle.loads(pickle.dumps(stream))
        epoch = [taken(batch) for batch in loader(copied, num_workers=1)]
    scene.problems += each_once([Rank([epoch])], len(store))


def resume(scene: Scene, step: Step) -> None:
    """A reading that is broken off and begun anew is like an unbroken one."""
    path = scene.place(step["from"])
    with within(step.get("max_seconds", _SECONDS)):
        first = _loader(path, step)
        epoch = [taken(batch) for batch in islice(first, step["after_batches"])]
        state = json.loads(json.dumps(first.state_dict()))
        later = _loader(path, step)
        later.load_state_dict(state)
        epoch += [taken(batch) for batch in later]
        found = [epoch, [taken(batch) for batch in later]]
        whole = _loader(path, step)
        unbroken = [[taken(batch) for batch in whole] for _ in range(2)]
    scene.problems += each_once([Rank(found)], len(whole.dataset.store))  # type: ignore[attr-defined]
    if found != unbroken:
        scene.problems.append("it does not go on as an unbroken epoch does")
    if "same_as" in step and [epoch for rank in scene.orders[step["same_as"]] for epoch in rank.epochs] != found:
        scene.problems.append(f"the order is not that of read {step['same_as']!r}")


def _loader(path: Path, step: Step) -> Loader:
    return loader(data_set(path, step), num_workers=step["workers"])


def read(scene: Scene, step: Step) -> None:
    """Read epochs with all ranks and compare them with what the step expects."""
    if step.get("after_peek") and not scene.opened:
        scene.problems.append("after_peek, but nothing was peeked at")
    ranks: list[Rank] = []
    try:
        with within(step.get("max_seconds", _SECONDS)):
            for tail in _tails(step):
                ranks.clear()
                read_ranks(ranks, scene.place(step["from"]), step, **({tail: True} if tail else {}))
                scene.problems += _compare(scene, step, tail, list(ranks))
    except PackerError as error:
        if not step.get("error"):
            began = any(epoch for rank in ranks for epoch in rank.epochs)
            problems = scene.problems if began else scene.refusals
            problems.append(f"reading {step['from']!r} {'broke off' if began else 'was refused'}: {error}")
    else:
        if step.get("error") is True:
            scene.problems.append(f"reading {step['from']!r} should have raised an error")


def _tails(step: Step) -> list[str | None]:
    """What becomes of a last batch that is not full: both documented rules where the case leaves it to policy."""
    if step.get("union") == "policy":
        return [*TAILS]
    return ["drop_last"] if step.get("drop_last") else [None]


def _compare(scene: Scene, step: Step, tail: str | None, ranks: list[Rank]) -> list[str]:
    """What is wrong with the batches that were taken."""
    built = scene.built(scene.place(step["from"]))
    problems = foreign(ranks, built, scene.case.expect.get("samples", []))
    if step.get("union") is not None:
        rule = TAILS[tail] if tail and step["union"] == "policy" else each_once
        problems += rule(ranks, len(built.store))
    problems += [text for key, ask in QUESTIONS.items() if step.get(key) is not None for text in ask(step, ranks)]
    if "same_as" in step and ranks != scene.orders[step["same_as"]]:
        problems.append(f"the order is not that of read {step['same_as']!r}")
    if "id" in step:
        scene.orders[step["id"]] = ranks
    return problems
