"""One LMDB environment per file and process, whoever forks, spawns, pickles or opens twice."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

import packer_reader
from packer import Job, Recipe, build
from packer_reader import MapDataset, StreamDataset, loader
from tests.conftest import make_serials

if TYPE_CHECKING:
    from pathlib import Path


def total(store: Any) -> int:
    """The labels of all samples, read and decoded."""
    return sum(int(sample["label"]) + int(sample["image"][0, 0, 0]) for sample in store)


def send(store: Any, line: Any) -> None:
    line.send(total(store))


@pytest.mark.parametrize("start", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("used", [False, True])
def test_a_store_goes_to_other_processes(start: str, used: bool, lmdb_store: Path) -> None:
    store = packer_reader.open(lmdb_store)
    expected = total(packer_reader.open(lmdb_store)) if used else None
    context: Any = multiprocessing.get_context(start)
    ours, theirs = context.Pipe()
    children = [context.Process(target=send, args=(store, theirs)) for _ in range(3)]
    for child in children:
        child.start()
    found = [ours.recv() for _ in children]
    for child in children:
        child.join()
        child.close()
    ours.close(), theirs.close()
    assert set(found) == {total(store)}
    assert expected in {None, found[0]}


@pytest.mark.parametrize("used", [False, True])
def test_pickles_hold_no_handle(used: bool, lmdb_store: Path) -> None:
    store = packer_reader.open(lmdb_store)
    if used:
        total(store)
    data = pickle.dumps(store)
    assert len(data) < 20_000
    assert total(pickle.loads(data)) == total(store)


def test_two_data_sets_on_one_store_in_one_process(lmdb_store: Path) -> None:
    first = StreamDataset(lmdb_store, batch_size=8, with_id=True, seed=1)
    second = MapDataset(lmdb_store, with_id=True)
    for batch in loader(first, num_workers=2):
        for place, number in enumerate(batch["id"].tolist()):
            assert (second[number]["image"] == batch["image"][place]).all()


def test_splits_of_one_folder_are_read_together(tmp_path: Path) -> None:
    source = make_serials(tmp_path / "src", 40)
    build(str(source), str(tmp_path / "o.lmdb"), Recipe(container="lmdb", val=0.3), Job(workers=1))
    train, val = (StreamDataset(tmp_path / "o.lmdb", split=name, batch_size=4) for name in ("train", "val"))
    loaders = [DataLoader(ds, batch_size=None, num_workers=2, persistent_workers=True) for ds in (train, val)]
    for _ in range(2):
        counts = [sum(len(batch["label"]) for batch in each) for each in loaders]
        assert sum(counts) == 40


READ = """
import sys
from packer_reader import StreamDataset, loader
if __name__ == "__main__":
    print(sum(len(b["label"]) for b in loader(StreamDataset(sys.argv[1], batch_size=8), num_workers=2)))
"""


def test_a_directory_that_cannot_be_written_is_read(lmdb_store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.lmdb"
    shutil.copytree(lmdb_store, copy)
    before = sorted(os.listdir(copy))
    for path in [*copy.rglob("*"), copy]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    program = tmp_path / "read.py"
    program.write_text(READ)
    command = [sys.executable, str(program), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    copy.chmod(0o755)
    assert done.stdout == "60\n"
    assert sorted(os.listdir(copy)) == before  # no lock file, which root could have written
