"""One reading of a store by real DataLoaders, and the batches that came of it."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import DataLoader, get_worker_info

from packer_reader import StreamDataset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.corpus.built import Built

__all__ = ["PROBES", "Batch", "Rank", "data_set", "foreign", "read_ranks", "taken", "within"]

Step = dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """A batch that a training loop has taken."""

    ids: tuple[int, ...]
    serials: tuple[int, ...]
    """The numbers that its pictures carry."""
    valid: tuple[bool, ...]
    """Which of its samples are not padding."""
    worker: int = -1
    probe: float = 0.0


@dataclass(frozen=True)
class Rank:
    """What one rank took: its epochs, each a list of batches."""

    epochs: list[list[Batch]] = field(default_factory=list)


class _NumpyDraw:
    """A transform that adds a number drawn from numpy's global generator, and who drew it."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        worker = get_worker_info()
        return batch | {"probe": np.random.random(), "worker": -1 if worker is None else worker.id}  # noqa: NPY002


PROBES = {"numpy_random_first_draw": _NumpyDraw}
"""What `probe` may ask to be drawn in each worker."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread when it takes longer: a reader must not hang."""

    def expire(_: int, __: Any) -> None:
        raise TimeoutError(f"reading took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def data_set(path: Path, step: Step, **options: Any) -> StreamDataset:
    """The data set that a read or resume step describes."""
    probe = PROBES[step["probe"]]() if "probe" in step else None
    return StreamDataset(
        path,
        batch_size=step["batch"],
        shuffle_buffer=step["buffer"],
        seed=step.get("seed", 0),
        with_id=True,
        transform=probe,
        **options,
    )


def taken(batch: dict[str, Any]) -> Batch:
    """What a batch holds."""
    ids = tuple(batch["id"].tolist())
    corner = batch["image"][:, :2, 0, 0].tolist()
    valid = tuple(batch["valid"].tolist()) if "valid" in batch else (True,) * len(ids)
    return Batch(
        ids, tuple(red + 256 * green for red, green in corner), valid, batch.get("worker", -1), batch.get("probe", 0.0)
    )


def read_ranks(ranks: list[Rank], path: Path, step: Step, **options: Any) -> None:
    """Let every rank read its epochs, one rank after the other, through stock DataLoaders.

    Args:
        ranks: what is taken goes here, batch by batch, so that it is known where an error came.
        path: the store.
        step: says how to read.
        options: more arguments of the data set.
    """
    for rank in range(step["world"]):
        stream = data_set(path, step, rank=rank, world_size=step["world"], **options)
        if step.get("after_peek"):
            assert stream.store[0]
        loader: DataLoader[Any] = DataLoader(
            stream,
            batch_size=None,
            num_workers=step["workers"],
            persistent_workers=step.get("persistent", False),
            multiprocessing_context=step.get("start"),
        )
        ranks.append(Rank())
        for _ in range(step.get("epochs", 1)):
            ranks[-1].epochs.append([])
            for batch in loader:
                ranks[-1].epochs[-1].append(taken(batch))


def foreign(ranks: list[Rank], built: Built, samples: list[dict[str, Any]]) -> list[str]:
    """Samples that are not what the store says they are: pictures carry another number than an entry says."""
    serials = {e["name"]: e[key] for e in samples for key in ("serial", "serial_corner") if key in e}
    wrong = []
    for batch in (batch for rank in ranks for epoch in rank.epochs for batch in epoch):
        for number, serial in zip(batch.ids, batch.serials, strict=True):
            if serials.get(built.names[number], serial) != serial:
                wrong.append(f"sample {number} carries {serial}")
    return wrong
