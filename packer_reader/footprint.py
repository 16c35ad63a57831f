"""What a loop over a data set takes in memory, before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from packer_reader.batch import BatchReader
    from packer_reader.format.fields import FieldSpec

__all__ = ["loop_bytes"]

_PROCESS = 1_000_000
"""Bytes that reading takes in a worker beside its batches: code, maps, Python objects. The loop's own process has most
of it already."""
_OPENCV = 4_500_000
"""What loading OpenCV for crops adds in each process."""
_PER_SAMPLE = 20
"""Bytes for each sample of the shuffle buffer: cells of the order, as numbers."""
_LOOKED_AT = 1000
"""Samples whose size stands for all where sizes differ."""


def loop_bytes(reader: BatchReader, batch_size: int, shuffle_buffer: int, workers: int, held: int) -> int:
    """Bytes that all processes take together, above the same loop over an empty data set.

    Args:
        reader: of the store.
        batch_size: samples in a batch.
        shuffle_buffer: in samples.
        workers: DataLoader's `num_workers`.
        held: batches of each worker, those that it has read ahead and those that are being trained on. In process there
            are two: the one that the loop holds, and the next.
    """
    batches = workers * held if workers else 2
    process = (_PROCESS if workers else 0) + (_OPENCV if reader.view.crop or reader.view.flip else 0)
    process += reader.scratch
    return (
        reader.cached_bytes
        + batches * _batch_bytes(reader, batch_size)
        + max(1, workers) * (process + _PER_SAMPLE * shuffle_buffer)
    )


def _batch_bytes(reader: BatchReader, batch_size: int) -> int:
    arrays = reader.arrays(batch_size)
    fixed = sum(int(np.prod(shape)) * int(np.dtype(dtype).itemsize) for _, dtype, shape in arrays)
    return fixed + batch_size * sum(_mean_bytes(reader, field) for field in reader.listed())


def _mean_bytes(reader: BatchReader, field: FieldSpec) -> int:
    """Of one value that comes in a list: an image by its sides, anything else by its share of the store."""
    store = reader.store
    if field.kind == "tokens" and field.shape == (None,) and reader.view.decode != "bytes":
        wide = 8 if reader.view.dtype == "int64" else int(np.dtype(field.dtype).itemsize)
        return int(store.manifest.statistics["tokens"]["tokens"]) * wide // max(1, len(store))
    if field.kind == "bounds":
        return 4 * (int(store.manifest.statistics["tokens"]["documents"]) // max(1, len(store)) + 2)
    if field.kind != "image" or reader.view.decode == "bytes":
        return int(store.manifest.bytes) // max(1, len(store))
    places = np.linspace(0, len(store) - 1, min(len(store), _LOOKED_AT)).astype(np.int64)
    area = store.columns.numbers("height")[places].astype(np.int64) * store.columns.numbers("width")[places]
    return int(area.mean()) * int(field.maximum[-1]) * int(np.dtype(field.dtype).itemsize)
