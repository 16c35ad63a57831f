"""What training saw at a step: the samples of one batch of one rank, from the numbers that a run is described by."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from packer_reader.arguments import whole
from packer_reader.batches import Batches
from packer_reader.errors import NotFoundError, UsageError
from packer_reader.format.names import line_text
from packer_reader.ranks import resolve_rank
from packer_reader.shuffle import order_of

if TYPE_CHECKING:
    from packer_reader.batches import Tail
    from packer_reader.order import Ints
    from packer_reader.stores.base import Store

__all__ = ["batch_at", "batch_lines", "describe_batch"]


def batch_at(
    store: Store,
    batch: str,
    *,
    batch_size: int,
    seed: int = 0,
    shuffle_buffer: int | str = "256MB",
    rank: int = 0,
    world_size: int = 1,
    start: int = 0,
    tail: Tail = "keep",
    lanes: int = 1,
    block: int | None = None,
) -> Ints:
    """Numbers of the samples that one rank got in one batch.

    Args:
        store: what was read.
        batch: "EPOCH:STEP", both from 0; steps count from where the run began or was resumed.
        batch_size: samples per batch and rank.
        seed: of the data set.
        shuffle_buffer: of the data set, in samples or bytes.
        rank: whose batch.
        world_size: number of ranks.
        start: samples of this epoch consumed before the run was resumed in it: `samples` of its state.
        tail: what the data set does with a last batch that is not full.
        lanes: of the data set.
        block: of the data set.

    Returns:
        int64 (n,).

    Raises:
        UsageError: an argument has a value that cannot be used.
        NotFoundError: the epoch has no such step.
    """
    found = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", batch)
    if found is None:
        raise UsageError(f"the batch is {batch!r}: give EPOCH:STEP, both counted from 0, such as 0:100")
    epoch, step = map(int, found.groups())
    rank, world_size = resolve_rank(rank, world_size)
    size = whole("batch_size", batch_size, 1, 2**40) * world_size
    spec = order_of(store, shuffle_buffer, seed, lanes, block)
    if size % spec.lanes:
        raise UsageError(f"lanes is {lanes}, it must divide the global batch of {size}")
    batches = Batches(spec, epoch, size, tail, whole("start", start, 0, len(store)), rank, world_size)
    if step >= len(batches):
        raise NotFoundError(f"epoch {epoch} has no step {step}: it has {len(batches)} batches of {size} samples")
    numbers, _ = batches.batch(step)
    if not len(numbers):
        raise NotFoundError(f"rank {rank} of {world_size} got no sample in step {step} of epoch {epoch}")
    return numbers


def describe_batch(store: Store, numbers: Ints) -> dict[str, Any]:
    """The batch in one JSON object."""
    labels, classes = _labels(store, numbers), store.classes
    samples = []
    for number, label in zip(numbers.tolist(), labels, strict=True):
        name = classes[label] if classes is not None and label is not None and label >= 0 else None
        samples.append({"sample": number, "source": store.source(number), "label": label, "class": name})
    return {"store": str(store.path), "samples": samples}


def _labels(store: Store, numbers: Ints) -> list[int | None]:
    if "label" not in store.columns:
        return [None] * len(numbers)
    labels: list[int | None] = store.columns.numbers("label")[numbers].tolist()
    return labels


def batch_lines(store: Store, numbers: Ints) -> list[str]:
    """The same for people: number, class and source of each sample."""
    return [
        f"{found['sample']:>12}  {line_text(found['class'] or '-')}  {found['source']!r}"
        for found in describe_batch(store, numbers)["samples"]
    ]
