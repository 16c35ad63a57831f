"""A stock DataLoader with good arguments for this machine, an exact length, and a state."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, get_worker_info

from packer_reader.dataset import StreamDataset
from packer_reader.epoch import Position
from packer_reader.errors import StateError, UsageError
from packer_reader.iteration import Bundle
from packer_reader.machine import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Loader", "loader"]


def _as_it_is(batch: Any) -> Any:
    """Instead of torch's default, which would turn numpy arrays into tensors."""
    return batch


@dataclass(frozen=True)
class _Sending:
    """What a worker does first: its own copy of the data set learns how many batches to send at a time.

    Other loaders may be starting workers with the same data set meanwhile.
    """

    together: int
    given: Callable[[int], None] | None
    """The user's."""

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        stream: Any = info.dataset
        stream.bundle = self.together
        if self.given is not None:
            self.given(worker)


class Loader(DataLoader[Any]):
    """Batches of a `StreamDataset`; made by `loader`.

    It says itself which epoch each iteration is, so its workers have nothing to agree on, and `state_dict` counts what
    the training loop has taken, not what workers have read ahead.
    """

    def __init__(self, dataset: StreamDataset, **options: Any) -> None:
        """Take DataLoader's keyword arguments but `batch_size`."""
        super().__init__(dataset, batch_size=None, **({"collate_fn": _as_it_is} | options))
        self._stream = dataset
        self._last: tuple[Position, int] | None = None
        """Where the iteration that gave the last batch began, and how many batches it has given."""
        self._asked = dataset.asked
        """How often the user had asked for a position by then."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        clock = self._stream.clock
        begun, asked = clock.next(), self._stream.asked
        clock.force(begun)
        given_init = self.worker_init_fn
        self.worker_init_fn = _Sending(self._sent_together(), given_init)
        try:
            sent = super().__iter__()  # starts workers
        finally:
            self.worker_init_fn = given_init
        given = 0
        for item in sent:
            for batch in item.taken_apart() if isinstance(item, Bundle) else (item,):
                given += 1
                self._last, self._asked = (begun, given), asked
                yield batch
        self._last, self._asked = (Position(begun.epoch + 1), 0), asked

    def _sent_together(self) -> int:
        """Batches that a worker sends at a time: one where others than this loop look at what it sends."""
        stream = self._stream
        alone = self.collate_fn is _as_it_is and type(stream).__iter__ is StreamDataset.__iter__
        return stream.sent_together(self.prefetch_factor or 1) if alone else 1

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that was taken; behind a whole epoch, the beginning of the next."""
        if self._last is None or self._stream.asked > self._asked:
            return self._stream.state_at(self._stream.clock.next(), 0)
        return self._stream.state_at(*self._last)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on behind the saved position.

        Raises:
            StateError: it belongs to another store or another order, or to one worker of another loader.
        """
        if isinstance(state, dict) and "worker" in state:
            raise StateError("the state is one worker's of a StatefulDataLoader: load it there")
        self._stream.load_state_dict(state)


_OWNED = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")


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
    if not isinstance(dataset, StreamDataset):
        raise UsageError(f"loader takes a StreamDataset, not {dataset!r}: for other data sets use DataLoader itself")
    if dataset.batch_size is None:
        raise UsageError("loader needs a StreamDataset with batch_size=; for single samples use DataLoader itself")
    owned = [name for name in _OWNED if name in options]
    if owned:
        raise UsageError(
            f"{owned[0]} is for the data set to say: StreamDataset(batch_size=, shuffle_buffer=, drop_last=)"
        )
    if not options.get("in_order", True):
        raise UsageError("in_order=False gives batches in no promised order, so no state would be right: leave it out")
    if num_workers is None:
        local = os.environ.get("LOCAL_WORLD_SIZE", "")
        num_workers = max(1, usable_cpus() // (int(local) if re.fullmatch("[1-9][0-9]{0,5}", local) else 1))
    options.setdefault("persistent_workers", num_workers > 0)
    return Loader(dataset, num_workers=num_workers, **options)
