"""Which part of each global batch this process takes, and who else would split the data."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch.distributed
from torch.utils.data import get_worker_info

from packer_reader.errors import BatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Share", "resolve_rank"]


@dataclass(frozen=True)
class Share:
    """A data set's share: as its user gave it, or to be found out where it is read."""

    rank: int | None
    world_size: int | None
    inherited: tuple[int, int] | BatchError | None = None
    """What the trainer found when it started this worker: its share, or why it has none."""

    def resolve(self) -> tuple[int, int]:
        """Rank and world size of this process; see `resolve_rank`."""
        inherited = self.inherited if get_worker_info() is not None else None
        if isinstance(inherited, BatchError):
            raise inherited
        return resolve_rank(self.rank, self.world_size, inherited)

    def for_workers(self) -> Share:
        """The same for a worker, which if spawned knows nothing of the trainer's process group."""
        try:
            return replace(self, inherited=self.resolve())
        except BatchError as error:
            return replace(self, inherited=error)


def resolve_rank(
    rank: int | None,
    world_size: int | None,
    inherited: tuple[int, int] | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, int]:
    """Rank and world size: as given, of torch.distributed, of the trainer, or of the environment that torchrun sets.

    Args:
        rank: as given by the user, or None.
        world_size: as given by the user, or None.
        inherited: what the trainer found when it started this worker, which may know nothing of its process group.
        environment: instead of `os.environ`.

    Raises:
        UsageError: they do not fit together.
        BatchError: several Slurm tasks run without a process group, so each would read everything; or Accelerate runs
            several processes, and would split the data once more.
    """
    if rank is not None or world_size is not None:
        return _checked(rank, world_size, "rank and world_size")
    _refuse_accelerate()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if inherited is not None:
        return inherited
    environment = os.environ if environment is None else environment
    if environment.get("RANK") or environment.get("WORLD_SIZE"):
        named = [environment.get(name, "") for name in ("RANK", "WORLD_SIZE")]
        parsed = [int(text) if re.fullmatch("[0-9]{1,9}", text) else None for text in named]
        return _checked(parsed[0], parsed[1], "the environment's RANK and WORLD_SIZE")
    tasks = environment.get("SLURM_NTASKS", "")
    if re.fullmatch("[0-9]{1,9}", tasks) and int(tasks) > 1 and "SLURM_PROCID" in environment:
        raise BatchError(
            f"{tasks} Slurm tasks run and none is in a process group, so each would read every sample: call "
            "torch.distributed.init_process_group first, or give rank= and world_size="
        )
    return 0, 1


def _refuse_accelerate() -> None:
    """Accelerate, and the Hugging Face Trainer through it, let rank 0 read for all, or take every n-th batch of each.

    Of a data set that has given each rank its part already, they would use one part and lose the others.
    """
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    if state is None or not state._shared_state:
        return
    processes = state().num_processes
    if processes > 1:
        raise BatchError(
            f"Accelerate runs {processes} processes and would split the data once more, so that samples are lost. "
            "Either give rank=state.process_index and world_size=state.num_processes, of state = "
            "accelerate.PartialState(), and keep the loader out of accelerator.prepare; or give rank=0, world_size=1, "
            "prepare a DataLoader of single samples (no batch_size), and let Accelerate split it"
        )


def _checked(rank: object, world_size: object, what: str) -> tuple[int, int]:
    if type(rank) is not int or type(world_size) is not int or not 0 <= rank < world_size:
        raise UsageError(f"{what} are {rank!r} and {world_size!r}: give both, with rank in 0..world_size-1")
    return rank, world_size
