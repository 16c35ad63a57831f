"""Damaged samples that are left out, on request: counted over all processes, and said at the end of an epoch."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch.utils.data import get_worker_info

from packer_reader.errors import BatchError, DamageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from packer_reader.batch import Batch, BatchReader

__all__ = ["OnError", "Skipped", "read_sound"]

OnError = Literal["raise", "skip"]

_LOG = logging.getLogger("packer_reader")
_WORKERS = 1024
"""Places in the shared count; workers beyond share them."""


class Skipped:
    """What was left out; picklable into DataLoader workers, which count in shared memory."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._counts = torch.zeros(_WORKERS, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._new: list[tuple[int, str]] = []
        """Epoch and error of what this process has left out and not said yet."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._counts.is_shared():  # a copy in the same process
            self._counts = self._counts.clone().share_memory_()

    @classmethod
    def asked_for(cls, on_error: OnError) -> Skipped | None:
        """A count, if samples are to be skipped.

        Raises:
            UsageError: there is no such policy.
        """
        if on_error not in get_args(OnError):
            raise UsageError(f"on_error is {on_error!r}, it must be 'raise' or 'skip'")
        return cls() if on_error == "skip" else None

    @property
    def total(self) -> int:
        """Samples left out so far, in all processes of this trainer."""
        return int(self._counts.sum())

    def add(self, error: DamageError, epoch: int) -> None:
        """One sample more."""
        info = get_worker_info()
        self._counts[(info.id if info is not None else 0) % _WORKERS] += 1
        self._new.append((epoch, str(error)))

    def report(self, path: Path) -> None:
        """Say in this process's log what it has left out since the last time."""
        for epoch in sorted({epoch for epoch, _ in self._new}):
            texts = [text for found, text in self._new if found == epoch]
            _LOG.warning(
                "epoch %d: %d damaged samples of %r were left out, the first: %s",
                epoch,
                len(texts),
                str(path),
                texts[0],
            )
        self._new.clear()


def read_sound(
    reader: BatchReader, numbers: npt.NDArray[np.int64], epoch: int, skipped: Skipped | None
) -> tuple[Batch, Sequence[int]]:
    """A batch, without its damaged samples if there is a count for them.

    Args:
        reader: of the store.
        numbers: sample numbers, int64 (n,).
        epoch: what random crops are drawn for.
        skipped: where damaged samples are counted; None raises at the first.

    Returns:
        The batch, and the places in `numbers` that it holds.

    Raises:
        StoreError: a sample is damaged and `skipped` is None; or more than samples is wrong (a file is gone, the system
            is out of descriptors, the store has been replaced).
        BatchError: no sample of the batch is sound.
    """
    try:
        return reader.read(numbers, epoch), range(len(numbers))
    except DamageError as error:
        if skipped is None or error.sample is None:
            raise
    reader.store.check_same()
    sound, last = [], None
    for place in range(len(numbers)):
        try:
            reader.read(numbers[place : place + 1], epoch)
            sound.append(place)
        except DamageError as error:
            if error.sample is None:
                raise
            skipped.add(error, epoch)
            last = error
    if not sound:
        raise BatchError(f"every sample of a batch is damaged, so that none is left to skip to: {last}")
    return reader.read(numbers[sound], epoch), sound
