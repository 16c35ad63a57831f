"""DistributedDataParallel over gloo: equal steps, each sample once or masked, killed and resumed by other ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from packer import Job, Recipe, build
from tests.conftest import make_serials

PROGRAM = """
import json, os, sys, torch, torch.distributed as dist
from packer_reader import StreamDataset, loader
if __name__ == "__main__":
    path, meet, log, tail, stop, state = sys.argv[1:7]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    ds = StreamDataset(path, batch_size=4, shuffle_buffer=20, with_id=True, **({tail: True} if tail != "keep" else {}))
    batches = loader(ds, num_workers=1)
    if state != "-":
        batches.load_state_dict(json.load(open(state)))
    network = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    file, steps = open(f"{log}.{rank}", "a"), 0
    for epoch in range(batches.state_dict()["epoch"], 2):
        for batch in batches:
            network(batch["image"][:, :, 0, 0].float()).sum().backward()  # waits for all ranks
            valid = batch["valid"] if "valid" in batch else torch.ones(len(batch["id"]), dtype=torch.bool)
            print(epoch, *batch["id"][valid].tolist(), file=file, flush=True)
            steps += 1
            if rank == 0:
                json.dump(batches.state_dict(), open(f"{log}.new", "w"))
                os.replace(f"{log}.new", f"{log}.state")
            dist.barrier()
            if steps == int(stop):
                print("here", flush=True)
                sys.stdin.read()  # until we are killed
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """47 pictures: no number of ranks divides them."""
    out = tmp_path_factory.mktemp("uneven") / "out"
    build(str(make_serials(out.with_name("src"), 47)), str(out), Recipe(shard_bytes=30_000), Job(workers=1))
    return out


def start(program: Path, world: int, *arguments: object) -> list[subprocess.Popen[str]]:
    meet = program.with_name(f"meet-{time.monotonic_ns()}")
    first, *rest = arguments
    return [
        subprocess.Popen(
            [sys.executable, str(program), str(first), str(meet), *map(str, rest)],
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(world)
    ]  # fmt: skip


def seen(log: Path, world: int) -> list[list[tuple[int, list[int]]]]:
    """Per rank the batches that it trained on: epoch and ids."""
    lines = [Path(f"{log}.{rank}").read_text().splitlines() for rank in range(world)]
    return [[(int(line.split()[0]), list(map(int, line.split()[1:]))) for line in each] for each in lines]


def counted(ranks: list[list[tuple[int, list[int]]]], epoch: int) -> Counter[int]:
    return Counter(number for each in ranks for found, ids in each if found == epoch for number in ids)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize(
    ("world", "tail"),
    [
        pytest.param(2, "keep", marks=pytest.mark.slow),
        pytest.param(3, "keep", marks=pytest.mark.slow),
        (3, "pad"),
        (2, "drop_last"),
    ],
)
def test_all_ranks_do_the_same_steps(world: int, tail: str, uneven: Path, program: Path) -> None:
    log = program.with_name("log")
    for process in start(program, world, uneven, log, tail, -1, "-"):
        process.communicate(timeout=100)
        assert process.returncode == 0
    ranks = seen(log, world)
    batches = 47 // (4 * world) + (tail != "drop_last")
    assert [len(each) for each in ranks] == [2 * batches] * world
    for epoch in range(2):
        found = counted(ranks, epoch)
        assert max(found.values()) == 1
        assert len(found) == (47 // (4 * world) * 4 * world if tail == "drop_last" else 47)


@pytest.mark.parametrize(
    ("before", "after"),
    [(2, 3), pytest.param(3, 2, marks=pytest.mark.slow), pytest.param(2, 1, marks=pytest.mark.slow)],
)
def test_killed_ranks_are_resumed_by_others(before: int, after: int, uneven: Path, program: Path) -> None:
    log, later = program.with_name("log"), program.with_name("later")
    running = start(program, before, uneven, log, "pad", 3, "-")
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
    for process in running:
        process.send_signal(signal.SIGKILL)
    for process in running:
        process.communicate()
    for process in start(program, after, uneven, later, "pad", -1, f"{log}.state"):
        process.communicate(timeout=100)
        assert process.returncode == 0
    first, second = seen(log, before), seen(later, after)
    assert counted(first, 0) + counted(second, 0) == Counter(range(47))
    assert counted(second, 1) == Counter(range(47))
