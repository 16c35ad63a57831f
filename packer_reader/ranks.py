"""Which part of each global batch this process takes."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import torch.distributed

from packer_reader.errors import BatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["resolve_rank"]


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
        BatchError: several Slurm tasks run without a process group, so each would read everything.
    """
    if rank is not None or world_size is not None:
        return _checked(rank, world_size, "rank and world_size")
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


def _checked(rank: object, world_size: object, what: str) -> tuple[int, int]:
    if type(rank) is not int or type(world_size) is not int or not 0 <= rank < world_size:
        raise UsageError(f"{what} are {rank!r} and {world_size!r}: give both, with rank in 0..world_size-1")
    return rank, world_size
