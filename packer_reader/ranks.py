"""Which part of each global batch this process takes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch.distributed

from packer_reader.errors import BatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["resolve_rank"]


def resolve_rank(
    rank: int | None, world_size: int | None, environment: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """Rank and world size: as given, of torch.distributed, or of the environment that torchrun sets.

    Raises:
        UsageError: they do not fit together.
        BatchError: several Slurm tasks run without a process group, so each would read everything.
    """
    if (rank is None) != (world_size is None):
        raise UsageError(f"rank is {rank!r} and world_size is {world_size!r}: give both or neither")
    if rank is not None and world_size is not None:
        if not 0 <= rank < world_size:
            raise UsageError(f"rank is {rank}, it must lie in 0..{world_size - 1} (world_size {world_size})")
        return rank, world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    environment = os.environ if environment is None else environment
    if environment.get("RANK", "").isdigit() and environment.get("WORLD_SIZE", "").isdigit():
        return int(environment["RANK"]), int(environment["WORLD_SIZE"])
    tasks = environment.get("SLURM_NTASKS", "")
    if tasks.isdigit() and int(tasks) > 1 and "SLURM_PROCID" in environment:
        raise BatchError(
            f"{tasks} Slurm tasks run and none is in a process group, so each would read every sample: call "
            "torch.distributed.init_process_group first, or give rank= and world_size="
        )
    return 0, 1
