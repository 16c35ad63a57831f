"""From a store and what the user asked for to an order, and how well that order mixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from packer_reader.arguments import whole
from packer_reader.errors import BatchError, UsageError
from packer_reader.order import OrderSpec
from packer_reader.sizes import parse_bytes
from packer_reader.stores.ahead import stored_step
from packer_reader.stores.base import Store
from packer_reader.stores.open import open_store

if TYPE_CHECKING:
    import os

    from packer_reader.sequences import SequenceStore

__all__ = ["ShuffleQuality", "default_block", "order_of", "shuffle_quality"]


def order_of(
    store: Store | SequenceStore, shuffle_buffer: int | str, seed: int, lanes: int, block: int | None
) -> OrderSpec:
    """The order of a store.

    Args:
        store: whose samples are ordered.
        shuffle_buffer: samples, or bytes such as "256MB"; 0 is the stored order.
        seed: 0 to 2^64-1.
        lanes: parts that are read side by side.
        block: consecutive samples read together; None derives it.

    Raises:
        BatchError: the store is empty.
        UsageError: an argument has a value that cannot be used.
    """
    if not len(store):
        raise BatchError(f"{store!r} has no samples")
    seed = whole("seed", seed, 0, 2**64 - 1)
    lanes = whole("lanes", lanes, 1, len(store))
    mean = max(1, store.manifest.bytes // len(store))
    window = _window(shuffle_buffer, mean)
    sizes = store.container_sizes
    if block is None:
        block = default_block(mean, max(1, window), int(sizes.max()), shuffled=store.manifest.shuffled)
    block = whole("block", block, 1, 2**40)
    return OrderSpec(sizes, seed, max(1, window), block, lanes, shuffled=window > 0, near=stored_step(store))


def _window(shuffle_buffer: int | str, mean: int) -> int:
    """The shuffle buffer in samples; at least one, unless it is 0."""
    if isinstance(shuffle_buffer, str):
        if shuffle_buffer.strip().isdecimal():
            raise UsageError(
                f"shuffle_buffer is {shuffle_buffer!r}: give {shuffle_buffer.strip()} for samples, '256MB' for bytes"
            )
        size = parse_bytes(shuffle_buffer, "shuffle_buffer")
        return max(1, size // mean) if size else 0
    return whole("shuffle_buffer", shuffle_buffer, 0, 2**40)


def default_block(mean_bytes: int, window: int, largest: int, *, shuffled: bool) -> int:
    """Samples per block: near 8 MiB, a small part of the window, dividing the largest container evenly.

    Args:
        mean_bytes: mean stored size of a sample, in bytes.
        window: the shuffle buffer in samples.
        largest: samples of the largest container.
        shuffled: whether the store was shuffled when written; otherwise a window needs many more blocks.
    """
    mean = max(1, mean_bytes)
    part = window // 16 if shuffled else window // 256
    wanted = max(1, min((8 << 20) // mean, max((64 << 10) // mean, part)))
    pieces = max(1, (2 * largest + wanted) // (2 * wanted))
    return max(1, -(-largest // pieces))


@dataclass(frozen=True)
class ShuffleQuality:
    """How well a store is mixed at a shuffle buffer: expected values, for blocks of equal size."""

    batch_size: int
    shuffle_buffer: int
    """In samples."""
    block: int
    """Consecutive samples that are read together."""
    stored_shuffled: bool
    """Whether the store was shuffled when it was built: then neighbours have nothing in common, and a block is as
    good as any other samples."""
    blocks_per_batch: float
    """Different blocks in a batch."""
    blocks_at_best: float
    """The same in a true random permutation of the whole store."""
    same_block: float
    """Probability that two samples of a batch come from the same block."""
    same_block_at_best: float


def shuffle_quality(
    store: Store | str | os.PathLike[str],
    *,
    batch_size: int = 256,
    shuffle_buffer: int | str = "256MB",
    block: int | None = None,
) -> ShuffleQuality:
    """The expected mixing of a store's order, from arithmetic alone.

    A batch is a draw without repetition from the buffer and what moves into it meanwhile: W = buffer + b samples. Of
    the W / k blocks of k samples a batch of b misses each with probability (1 - k/W) (1 - k/(W-1)) ... (1 - k/(W-b+1)).

    Args:
        store: opened, or its path.
        batch_size: samples of a global batch.
        shuffle_buffer: as `StreamDataset` takes it.
        block: as `StreamDataset` takes it.

    Raises:
        UsageError: an argument has a value that cannot be used.
    """
    store = store if isinstance(store, Store) else open_store(store)
    batch = whole("batch_size", batch_size, 1, 2**40)
    spec = order_of(store, shuffle_buffer, 0, 1, block)
    size = min(spec.block, spec.total)
    # A batch comes out while the buffer moves on by as many samples.
    pool = min(spec.total, max(size, (spec.window if spec.shuffled else 0) + batch))
    return ShuffleQuality(
        batch_size=batch,
        shuffle_buffer=spec.window if spec.shuffled else 0,
        block=spec.block,
        stored_shuffled=store.manifest.shuffled,
        blocks_per_batch=_different(pool, size, batch) if spec.shuffled else 1 + (min(batch, spec.total) - 1) / size,
        blocks_at_best=_different(spec.total, size, batch),
        same_block=(size - 1) / max(1, pool - 1),
        same_block_at_best=(size - 1) / max(1, spec.total - 1),
    )


def _different(samples: int, block: int, draws: int) -> float:
    """Expected number of different blocks among draws without repetition from samples in blocks of one size."""
    draws = min(draws, samples)
    if draws > samples - block:
        return samples / block
    missed = np.log1p(-block / (samples - np.arange(draws))).sum()
    return float(samples / block * -np.expm1(missed))
