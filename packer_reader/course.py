"""One rank's way through the epochs of a store: its batches from any position on, and positions as states."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packer_reader.batches import Batches, Tail
from packer_reader.epoch import Position
from packer_reader.errors import BatchError, UsageError
from packer_reader.order import ORDER_VERSION, OrderSpec
from packer_reader.state import STATE_VERSION, position_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packer_reader.ranks import Share

__all__ = ["SINGLES", "Course"]

SINGLES = 64
"""Samples read at a time when they are given one by one."""


@dataclass(frozen=True)
class Course:
    """All that decides which samples come in which batch of this rank."""

    content: str
    """The store's content digest."""
    spec: OrderSpec
    batch_size: int | None
    """Samples per batch and rank; None for single samples."""
    tail: Tail
    share: Share

    @property
    def shuffle_buffer(self) -> int:
        """The shuffle buffer in samples; 0 is the stored order."""
        return self.spec.window if self.spec.shuffled else 0

    def batches(self, position: Position) -> Batches:
        """This rank's batches of an epoch, from a position on.

        Raises:
            UsageError: the lanes do not divide the global batch.
            BatchError: the rank is not known.
        """
        rank, world_size = self.share.resolve()
        batch = self._global_batch(world_size)
        if batch % self.spec.lanes:
            raise UsageError(f"lanes is {self.spec.lanes}, it must divide the global batch of {batch}")
        return Batches(self.spec, position.epoch, batch, self.tail, position.start, rank, world_size)

    def batches_to_read(self, position: Position) -> Batches:
        """The same, when they will be read.

        Raises:
            BatchError: the last global batch has fewer samples than ranks, and nothing says what to do with it.
        """
        batches = self.batches(position)
        last = batches.last_size()
        if self.tail == "keep" and self.batch_size is not None and 0 < last < batches.world_size:
            raise BatchError(
                f"the last global batch has {last} samples for {batches.world_size} ranks, so some would get none: "
                "give drop_last=True, or pad=True and mask with batch['valid']"
            )
        return batches

    def __len__(self) -> int:
        """Batches of a whole epoch, or its samples where they come one by one."""
        batches = self.batches(Position(0))
        if self.batch_size is not None:
            return len(batches)
        return (len(batches) - 1) * SINGLES + batches.part(batches.last_size())

    def behind(self, position: Position, batches: int) -> Position:
        """So many of this rank's batches further on, at most at the end of the epoch."""
        consumed = position.start + batches * self._global_batch(self.share.resolve()[1])
        return Position(position.epoch, min(consumed, self.spec.total))

    def settled(self, position: Position) -> Position:
        """The same, or the next epoch's beginning where no batch is left: nobody wants an epoch without any."""
        return Position(position.epoch + 1) if position.start and not len(self.batches(position)) else position

    def state_of(self, position: Position) -> dict[str, Any]:
        """A position as a state."""
        return self._identity() | {"epoch": position.epoch, "samples": position.start}

    def position_of(self, state: Mapping[str, Any]) -> Position:
        """Where a state's iteration goes on.

        Raises:
            StateError: the state belongs to another store or another order.
        """
        return position_of(state, self._identity(), self.spec.total, self.spec.lanes)

    def _global_batch(self, world_size: int) -> int:
        return (self.batch_size or SINGLES) * world_size

    def _identity(self) -> dict[str, Any]:
        """Everything that the order depends on."""
        spec = self.spec
        return {
            "version": STATE_VERSION,
            "order": ORDER_VERSION,
            "store": self.content,
            "containers": hashlib.sha256(spec.sizes.astype("<i8").tobytes()).hexdigest()[:16],
            "seed": spec.seed,
            "shuffle_buffer": self.shuffle_buffer,
            "block": spec.block,
            "lanes": spec.lanes,
        }
