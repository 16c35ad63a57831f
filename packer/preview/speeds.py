"""What this machine does with samples as they would be stored: sizes and rates from a few of them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from packer.images import open_sample
from packer.measure.limits import copy_rate, decode_rate, disk_rate
from packer.plan import Plan
from packer.preview.suggest import Speeds
from packer.stored import stored_sample
from packer.unit import some_refs
from packer_reader.errors import SampleError
from packer_reader.format.names import MANIFEST
from packer_reader.machine import free_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from packer.sources.refs import RefTable
    from packer.unit import SplitJob

__all__ = ["FOR_SPEED", "measure_speeds"]

FOR_SPEED = 24
"""Samples that are converted, and their images decoded."""
_FILES = 256
"""Files read from the disk."""


def measure_speeds(paths: Sequence[str], job: SplitJob, refs: RefTable, heard: Callable[[int], None]) -> Speeds | None:
    """Convert some samples and decode their images; read some of the source's files, as they come from the disk.

    Args:
        paths: sources.
        job: how samples would be stored.
        refs: of the source.
        heard: told of each sample.

    Returns:
        None where no sample can be converted.
    """
    images, pixels, others = list[bytes](), list[int](), list[int]()
    for ref in some_refs(job, Plan(job.count, job.recipe.seed, FOR_SPEED).refs(0)):
        with suppress(SampleError):
            sample = stored_sample(job, open_sample(job, ref))
            images.append(bytes(sample.blobs[0]))
            height, width = sample.facts.size
            pixels.append(height * width * (1 if job.recipe.gray else 3) * (job.recipe.bits // 8))
            others.append(sum(map(len, sample.blobs[1:])))
        heard(1)
    if not images:
        return None
    return Speeds(
        encoded_bytes=sum(map(len, images)) / len(images),
        raw_bytes=sum(pixels) / len(pixels),
        other_bytes=sum(others) / len(others),
        decoded=decode_rate(images, job.codec, 0.4),
        disk=disk_rate(_files(paths, refs, job.recipe.seed), 1.0),
        copied=copy_rate(),
        room=free_memory() // 2,
    )


def _files(paths: Sequence[str], refs: RefTable, seed: int) -> list[Path]:
    """Some of the source's files, its archives, or the data of a store; none where they cannot be told."""
    found = dict[Path, None]()
    for ref in refs.some(np.sort(Plan(len(refs), seed, _FILES).refs(0))):
        root = Path(paths[ref.source]) if ref.source < len(paths) else Path()
        if (root / MANIFEST).exists():
            found |= dict.fromkeys(path for path in sorted(root.iterdir()) if path.suffix in {".tar", ".mdb"})
            continue
        path = os.fsencode(ref.name)[ref.prefix :]
        inside = path[: ref.outer] if ref.offset >= 0 else path
        # A list's files lie beside it.
        file = (root if root.is_dir() else root.parent) / os.fsdecode(inside) if inside else root
        if file.is_file():
            found[file] = None
    return list(found)
