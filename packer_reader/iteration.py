"""One pass over a stream in one process: an iterator that can say where it is, and be put elsewhere.

`torchdata`'s StatefulDataLoader asks each worker's iterator for its state, and puts it back into a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info

from packer_reader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packer_reader.dataset import StreamDataset
    from packer_reader.epoch import Position
    from packer_reader.order import Batches

__all__ = ["Iteration"]


class Iteration(Iterator[Any]):
    """This process's share of one epoch: batches w, w + n, ... of worker w of n."""

    def __init__(self, stream: StreamDataset) -> None:
        """Begin where the data set's clock says."""
        self._stream = stream
        info = get_worker_info()
        self._worker, self._workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._seek(stream.clock.begin(), 0, 0)

    def _seek(self, position: Position, given: int, place: int) -> None:
        self._position, self._given, self._place = position, given, place
        self._batches: Batches = self._stream.batches_from(position)
        self._held: list[Any] | None = None
        """Samples of the batch that is given one by one."""

    def __next__(self) -> Any:
        if self._stream.awaited:
            raise StateError(
                "a state of one worker was loaded: load it through the loader that saved it (StatefulDataLoader), or "
                "save with packer_reader.loader or state_dict(batches=...)"
            )
        while (number := self._worker + self._given * self._workers) < len(self._batches):
            if self._stream.batch_size is not None:
                self._given += 1
                batch = self._stream.batch(self._batches, number)
                if batch is not None:
                    return batch
                continue
            if self._held is None:
                self._held = self._stream.samples(self._batches, number)
            if self._place < len(self._held):
                self._place += 1
                sample = self._held[self._place - 1]
                return self._stream.transform(sample) if self._stream.transform else sample
            self._held, self._place, self._given = None, 0, self._given + 1
        self._stream.report(self._position.epoch)
        raise StopIteration

    def state_dict(self) -> dict[str, Any]:
        """Where this process is: the data set's own state when it reads alone, otherwise one for this worker only."""
        if self._workers == 1 and self._stream.batch_size is not None:
            return self._stream.state_of(self._stream.behind(self._position, self._given))
        return self._stream.state_of(self._position) | {
            "worker": self._worker,
            "workers": self._workers,
            "given": self._given,
            "place": self._place,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken.

        Raises:
            StateError: it belongs to another store, order, or share.
        """
        position = self._stream.position_of(state)
        share = state.get("worker", 0), state.get("workers", 1)
        if share != (self._worker, self._workers):
            raise StateError(
                f"the state is of worker {share[0]} of {share[1]}, this is worker {self._worker} of {self._workers}: "
                "take the same num_workers, or use packer_reader.loader, whose state fits any number"
            )
        self._stream.awaited = False
        self._stream.clock.correct(position)
        self._seek(position, int(state.get("given", 0)), int(state.get("place", 0)))
