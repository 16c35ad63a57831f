"""One pass over a stream in one process: an iterator that can say where it is, and be put elsewhere.

`torchdata`'s StatefulDataLoader asks each worker's iterator for its state, and puts it back into a new one.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torch._utils import ExceptionWrapper
from torch.utils.data import get_worker_info

from packer_reader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packer_reader.batches import Batches
    from packer_reader.dataset import StreamDataset
    from packer_reader.epoch import Position

__all__ = ["Bundle", "Iteration"]


_END = object()


@lru_cache(maxsize=1)
def _freeze(process: int) -> None:  # noqa: ARG001 - once in each
    """Leave what a worker has inherited alone.

    Its first collection would write into all those objects, and so copy their pages: 39 MB after torch is imported.
    """
    gc.freeze()


class Bundle(list[Any]):
    """Batches that travel together, the last of them perhaps a failure. A type of its own, as no batch is one."""

    def taken_apart(self) -> Iterator[Any]:
        """One after the other, none of them held here."""
        self.reverse()
        while self:
            item = self.pop()
            if isinstance(item, ExceptionWrapper):
                item.reraise()  # type: ignore[no-untyped-call]
            yield item
            del item


class Iteration(Iterator[Any]):
    """This process's share of one epoch: workers take turns, with one batch or with as many as they send at a time."""

    def __init__(self, stream: StreamDataset) -> None:
        """Begin where the data set's clock says."""
        self._stream = stream
        info = get_worker_info()
        self._worker, self._workers = (0, 1) if info is None else (info.id, info.num_workers)
        if info is not None:
            _freeze(os.getpid())
        self._seek(stream.clock.begin(), 0, 0)

    def _seek(self, position: Position, given: int, place: int) -> None:
        self._position, self._given, self._place = position, given, place
        self._batches: Batches = self._stream.course.batches_to_read(position)
        self._bundle = max(1, min(self._stream.bundle, -(-len(self._batches) // self._workers)))
        self._ended = False
        self._held: list[Any] | None = None
        """Samples of the batch that is given one by one."""
        self._ready: Iterator[Any] = iter(())
        """Batches that were found together and not given yet."""

    def __next__(self) -> Any:
        if self._stream.awaited:
            raise StateError(
                "a state of one worker, or of single samples, was loaded: only a loader that keeps such states can "
                "put it back (torchdata's StatefulDataLoader)"
            )
        while (number := self._number()) < len(self._batches):
            if self._bundle > 1:
                return self._next_bundle()
            if self._stream.batch_size is not None:
                if self._workers == 1 and get_worker_info() is None:
                    return self._next_here(number)
                self._given += 1
                return self._stream.batch(self._batches, number)
            if self._held is None:
                self._held = self._stream.samples(self._batches, number)
            if self._place < len(self._held):
                self._place += 1
                sample = self._held[self._place - 1]
                return self._stream.transform(sample) if self._stream.transform else sample
            self._held, self._place, self._given = None, 0, self._given + 1
        self._ended = True
        self._stream.report()
        raise StopIteration

    def _number(self) -> int:
        """Of the next batch."""
        turn, place = divmod(self._given, self._bundle)
        return (turn * self._workers + self._worker) * self._bundle + place

    def _next_bundle(self) -> Bundle:
        """The next batches up to the end of this worker's turn, or to one that fails."""
        bundle = Bundle()
        while len(bundle) < self._bundle and (number := self._number()) < len(self._batches):
            self._given += 1
            try:
                bundle.append(self._stream.batch(self._batches, number))
            except Exception:  # noqa: BLE001 - it is raised when its turn comes
                where = f"in DataLoader worker process {self._worker}"
                bundle.append(ExceptionWrapper(where=where))  # type: ignore[no-untyped-call]
                break
        return bundle

    def _next_here(self, number: int) -> Any:
        """The next batch, where this process trains as well."""
        self._given += 1  # whatever comes of it: one that failed does not come again
        batch = next(self._ready, _END)
        if batch is _END:
            self._ready = self._stream.several(self._batches, number)
            batch = next(self._ready)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where this process is: the data set's own state when it reads alone, otherwise one for this worker only."""
        course = self._stream.course
        if self._workers == 1 and self._stream.batch_size is not None:
            # Behind the end torchdata begins the next epoch itself; behind the last batch it would begin an empty one.
            position = course.behind(self._position, self._given)
            return course.state_of(position if self._ended else course.settled(position))
        return course.state_of(self._position) | {
            "worker": self._worker,
            "workers": self._workers,
            "given": self._given,
            "place": self._place,
            "batch": self._stream.batch_size or 0,
            "global_batch": self._batches.global_batch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken.

        Raises:
            StateError: it belongs to another store, order, or share.
        """
        position = self._stream.course.position_of(state)
        share = state.get("worker", 0), state.get("workers", 1)
        if share != (self._worker, self._workers):
            raise StateError(
                f"the state is of worker {share[0]} of {share[1]}, this is worker {self._worker} of {self._workers}: "
                "take the same num_workers, or use packer_reader.loader, whose state fits any number"
            )
        sizes = self._stream.batch_size or 0, self._batches.global_batch
        if (state.get("batch", sizes[0]), state.get("global_batch", sizes[1])) != sizes:
            raise StateError(
                f"the state counts batches of {state['batch']} ({state['global_batch']} over all ranks), these are of "
                f"{sizes[0]} ({sizes[1]}): take the same, or use packer_reader.loader, whose state fits any"
            )
        self._stream.awaited = False
        self._stream.clock.correct(position)
        self._seek(position, int(state.get("given", 0)), int(state.get("place", 0)))
