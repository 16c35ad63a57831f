"""From a store and what the user asked for to an order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packer_reader.arguments import whole
from packer_reader.errors import BatchError, UsageError
from packer_reader.order import OrderSpec
from packer_reader.sizes import parse_bytes

if TYPE_CHECKING:
    from packer_reader.stores.base import Store

__all__ = ["default_block", "order_of"]


def order_of(store: Store, shuffle_buffer: int | str, seed: int, lanes: int, block: int | None) -> OrderSpec:
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
    return OrderSpec(sizes, seed, max(1, window), block, lanes, shuffled=window > 0)


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
    part = window // 16 if shuffled else window // 256
    mean = max(1, mean_bytes)
    wanted = max(1, min((8 << 20) // mean, max((64 << 10) // mean, part)))
    pieces = max(1, (2 * largest + wanted) // (2 * wanted))
    return max(1, -(-largest // pieces))
