"""The seam of every container: what the driver does with finished units, in their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from packer.output.journal import Journal, ShardDone
    from packer.sinks.cut import ShardPlan
    from packer.unit import SplitJob, UnitDone

__all__ = ["Sink", "StoreTarget"]


@dataclass(frozen=True)
class StoreTarget:
    """Where a split's store grows, and what its shards are called."""

    job: SplitJob
    folder: Path
    prefix: str


class Sink(Protocol):
    """One container being filled, in the driver."""

    moves_data: bool
    """Whether `take` itself stores a unit's fragment, so that it may be deleted afterwards."""

    def settled(self, journal: Journal) -> set[int]:
        """Units of an interrupted build whose samples are in place already, without their fragments."""

    def take(self, done: UnitDone) -> list[ShardPlan]:
        """Take the next unit; returns shards that can be assembled now."""

    def close(self) -> list[ShardPlan]:
        """No more units come; returns the last shard."""

    def finish(self) -> Mapping[str, int]:
        """Make the container whole; returns `records` and, where it is known, `oversized`."""

    def assemble(self) -> _Assemble:
        """The task that makes one shard."""


class _Assemble(Protocol):
    """A picklable function."""

    def __call__(self, job: SplitJob, plan: ShardPlan, /) -> ShardDone:
        """Write a shard and its index under their final names."""
