"""A stock DataLoader with good arguments for this machine, an exact length, and a state."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from packer_reader.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from packer_reader.dataset import StreamDataset

__all__ = ["Loader", "loader"]


class Loader(DataLoader[Any]):
    """Batches of a `StreamDataset`; made by `loader`.

    `state_dict` counts what the training loop has taken, not what workers have read ahead.
    """

    def __init__(self, dataset: StreamDataset, **options: Any) -> None:
        """Take DataLoader's keyword arguments but `batch_size`."""
        super().__init__(dataset, batch_size=None, **options)
        self._stream, self._given = dataset, 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._given = 0
        for batch in super().__iter__():
            self._given += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that was taken."""
        return self._stream.state_dict(self._given)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on behind the saved position.

        Raises:
            StateError: it belongs to another store or another order.
        """
        self._given = 0
        self._stream.load_state_dict(state)


def loader(dataset: StreamDataset, *, num_workers: int | None = None, **options: Any) -> Loader:
    """A DataLoader for a `StreamDataset` with `batch_size`.

    Args:
        dataset: what to read.
        num_workers: processes that read ahead; None takes the CPUs this job may use, divided by the processes of this
            machine (LOCAL_WORLD_SIZE). The batches are the same for any number.
        options: DataLoader's other arguments; workers persist unless told otherwise.

    Raises:
        UsageError: the data set gives single samples, or an argument does not fit.
    """
    if dataset.batch_size is None:
        raise UsageError("loader needs a StreamDataset with batch_size=; for single samples use DataLoader itself")
    if "batch_size" in options or "shuffle" in options:
        raise UsageError(
            "batch_size and shuffling belong to the StreamDataset: give batch_size= and shuffle_buffer= there"
        )
    if num_workers is None:
        local = os.environ.get("LOCAL_WORLD_SIZE", "1")
        num_workers = max(1, len(os.sched_getaffinity(0)) // (int(local) if local.isdigit() and int(local) else 1))
    options.setdefault("persistent_workers", num_workers > 0)
    return Loader(dataset, num_workers=num_workers, **options)
