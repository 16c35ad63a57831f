"""Rank and world size: given, from a process group, or from the environment; never guessed for Slurm tasks."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from packer_reader.errors import BatchError
from packer_reader.ranks import resolve_rank

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import sys, torch.distributed as dist
from torch.utils.data import DataLoader
from packer_reader import StreamDataset
if __name__ == "__main__":
    path, rank, method = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[4]}", rank=rank, world_size=2)
    ds = StreamDataset(path, batch_size=8, with_id=True, shuffle_buffer=20)
    workers = DataLoader(ds, batch_size=None, num_workers=2, multiprocessing_context=method)
    print(*[i for batch in workers for i in batch["id"].tolist()])
    dist.destroy_process_group()
"""


def test_arguments_win_over_the_environment() -> None:
    torchrun = {"RANK": "3", "WORLD_SIZE": "4"}
    assert resolve_rank(0, 2, None, torchrun) == (0, 2)
    assert resolve_rank(None, None, None, torchrun) == (3, 4)
    assert resolve_rank(None, None, None, {}) == (0, 1)


def test_slurm_tasks_without_a_group_are_an_error() -> None:
    assert resolve_rank(None, None, None, {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}) == (0, 1)
    with pytest.raises(BatchError, match="4 Slurm tasks .*init_process_group first, or give rank="):
        resolve_rank(None, None, None, {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"})


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_know_the_trainers_process_group(method: str, tar_store: Path, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    arguments = [str(tar_store), "RANK", method, str(tmp_path / "meet")]
    ranks = [
        subprocess.Popen([sys.executable, str(program), *(str(rank) if a == "RANK" else a for a in arguments)],
                         stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]  # fmt: skip
    seen = [int(number) for process in ranks for number in process.communicate(timeout=120)[0].split()]
    assert sorted(seen) == list(range(60))
