"""The stream in real programs: ranks started in every way, late workers, copies, threads, changed folders."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import packer_reader
from packer import Job, Recipe, build
from packer_reader import StreamDataset, loader
from packer_reader.errors import BatchError, DamageError, StateError, UsageError
from tests.conftest import make_serials

RANKS = """
import sys, torch.distributed as dist, torch.multiprocessing as mp
from torch.utils.data import DataLoader
from packer_reader import StreamDataset
def rank_main(rank, ds, meet, method):
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    for epoch in range(2):
        batches = DataLoader(ds, batch_size=None, num_workers=2, multiprocessing_context=method)
        with open(f"{meet}.{rank}", "a") as file:
            for batch in batches:
                print(epoch, *batch["id"].tolist(), file=file)
    dist.barrier()
    dist.destroy_process_group()
if __name__ == "__main__":
    path, meet, start, method = sys.argv[1:]
    ds = StreamDataset(path, batch_size=4, with_id=True, shuffle_buffer=20)
    mp.start_processes(rank_main, args=(ds, meet, method), nprocs=2, start_method=start)
"""


def ids_of(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def stream(path: Path, **options: Any) -> StreamDataset:
    return StreamDataset(path, **({"batch_size": 8, "shuffle_buffer": 20, "with_id": True} | options))


@pytest.mark.parametrize(
    ("start", "method"),
    [
        ("fork", "fork"),
        ("spawn", "fork"),
        *(pytest.param(start, "spawn", marks=pytest.mark.slow) for start in ("fork", "spawn")),
    ],
)
def test_ranks_that_get_one_data_set_share_it_out(start: str, method: str, tar_store: Path, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(RANKS)
    command = [sys.executable, str(program), str(tar_store), str(tmp_path / "meet"), start, method]
    subprocess.run(command, check=True, timeout=100)
    seen: Counter[tuple[int, int]] = Counter()
    for rank in (0, 1):
        for line in Path(f"{tmp_path / 'meet'}.{rank}").read_text().splitlines():
            epoch, *ids = map(int, line.split())
            seen.update((epoch, i) for i in ids)
    assert seen == Counter((epoch, i) for epoch in range(2) for i in range(60))


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_more_workers_than_batches_lose_nothing(start: str, tar_store: Path) -> None:
    for _ in range(3):
        ds = stream(tar_store, batch_size=30)
        batches = DataLoader(ds, batch_size=None, num_workers=6, multiprocessing_context=start)
        assert [sorted(sum(ids_of(batches), [])) for _ in range(2)] == [list(range(60))] * 2


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda ds: pickle.loads(pickle.dumps(ds))])
def test_copies_count_their_epochs_in_workers(clone: Any, tar_store: Path) -> None:
    ds = clone(stream(tar_store))
    batches = DataLoader(ds, batch_size=None, num_workers=2, persistent_workers=True)
    found = [ids_of(batches) for _ in range(2)]
    ds.set_epoch(9)
    found.append(ids_of(batches))
    reference = stream(tar_store)
    expected = [ids_of(reference) for _ in range(2)]
    reference.set_epoch(9)
    assert found == [*expected, ids_of(reference)]


def test_two_loaders_at_once_each_see_everything(tar_store: Path) -> None:
    ds = stream(tar_store)
    pairs = list(zip(loader(ds, num_workers=2), loader(ds, num_workers=2), strict=True))
    for side in (0, 1):
        assert sorted(i for pair in pairs for i in pair[side]["id"].tolist()) == list(range(60))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_at_an_epochs_end_is_the_next_ones_beginning(workers: int, tar_store: Path) -> None:
    ds = stream(tar_store)
    batches = loader(ds, num_workers=workers)
    assert batches.state_dict()["samples"] == 0
    ids_of(batches)
    ended = batches.state_dict()
    ds.set_epoch(1)
    assert [batches.state_dict()[n] for n in ("epoch", "samples")] == [ended[n] for n in ("epoch", "samples")] == [1, 0]
    resumed = loader(stream(tar_store), num_workers=workers)
    resumed.load_state_dict(ended)
    assert ids_of(resumed) == ids_of(batches)


def test_each_loader_has_a_state_of_its_own(tar_store: Path) -> None:
    ds = stream(tar_store)
    # torch resets persistent workers for a second iterator, so the first could not go on.
    one, other = (loader(ds, num_workers=1, persistent_workers=False) for _ in range(2))
    running = iter(one)
    taken = [next(running)["id"].tolist() for _ in range(3)]
    next(iter(other))
    assert [one.state_dict()[n] for n in ("epoch", "samples")] == [0, 24]
    next(iter(one))  # a peek
    taken.append(next(running)["id"].tolist())
    state = one.state_dict()
    assert [state[n] for n in ("epoch", "samples")] == [0, 32]
    resumed = loader(stream(tar_store), num_workers=0)
    resumed.load_state_dict(state)
    assert taken + ids_of(resumed) == ids_of(stream(tar_store))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("container", ["tar", "lmdb"])
def test_a_store_replaced_while_it_is_read_is_noticed(container: Any, workers: int, tmp_path: Path) -> None:
    source = make_serials(tmp_path / "src", 60)
    recipes = [Recipe(container=container, seed=seed, encode="raw", shard_bytes=30_000) for seed in (0, 1)]
    build(str(source), str(tmp_path / "o"), recipes[0], Job(workers=1))
    ds = stream(tmp_path / "o")
    build(str(source), str(tmp_path / "o"), recipes[1], Job(workers=1, overwrite=True))
    with pytest.raises(DamageError, match="was replaced while it was read: open it again"):
        list(DataLoader(ds, batch_size=None, num_workers=workers))
    assert len(ids_of(stream(tmp_path / "o"))) == 8


def test_a_buffer_in_quotes_needs_a_unit(tar_store: Path) -> None:
    with pytest.raises(UsageError, match="give 10000 for samples"):
        stream(tar_store, shuffle_buffer="10000")


def test_the_state_knows_the_containers(tar_store: Path, serials: Path, tmp_path: Path) -> None:
    build(str(serials), str(tmp_path / "o"), Recipe(shard_bytes=20_000), Job(workers=1))
    other = stream(tmp_path / "o", block=3)
    assert other.store.manifest.content_digest == packer_reader.open(tar_store).manifest.content_digest
    with pytest.raises(StateError, match="containers"):
        other.load_state_dict(stream(tar_store, block=3).state_dict(1))


def test_lanes_end_where_they_end(store: Path) -> None:
    ds = stream(store, batch_size=7 * 4, lanes=7)
    state = ds.state_dict(batches=99)
    assert (state["epoch"], state["samples"]) == (1, 0)
    ds.load_state_dict(state)
    assert sorted(sum(ids_of(ds), [])) == list(range(60))
    assert ds.epoch == 1


@pytest.mark.parametrize("state", [None, {}, "x"])
def test_no_state_at_all_is_refused(state: Any, tar_store: Path) -> None:
    with pytest.raises(StateError, match="pass what state_dict returned"):
        stream(tar_store).load_state_dict(state)
    with pytest.raises(StateError, match="pass what state_dict returned"):
        loader(stream(tar_store), num_workers=0).load_state_dict(state)


@pytest.mark.parametrize("change", [{"samples": -5}, {"samples": 61}, {"epoch": "x"}])
def test_a_damaged_state_is_refused(change: dict[str, Any], tar_store: Path) -> None:
    with pytest.raises(StateError, match="the state is damaged"):
        stream(tar_store).load_state_dict(stream(tar_store).state_dict(1) | change)


def test_single_samples_have_no_state(tar_store: Path) -> None:
    with pytest.raises(UsageError, match="give batch_size="):
        stream(tar_store, batch_size=None).state_dict(1)


@pytest.mark.parametrize("epoch", [-1, 1.5, 2**63, "a"])
def test_epochs_are_whole_numbers(epoch: Any, tar_store: Path) -> None:
    with pytest.raises(UsageError, match="epoch is"):
        stream(tar_store).set_epoch(epoch)


def test_first_reads_from_many_threads(store: Path) -> None:
    program = (
        "import sys, threading, packer_reader\n"
        "for _ in range(5):\n"
        "    store = packer_reader.open(sys.argv[1])\n"
        "    found = []\n"
        "    threads = [threading.Thread(target=lambda n=n: found.append(store[n]['label'])) for n in range(16)]\n"
        "    [t.start() for t in threads]; [t.join() for t in threads]\n"
        "    assert len(found) == 16\n"
    )
    for _ in range(3):
        subprocess.run([sys.executable, "-c", program, str(store)], check=True)


def test_a_store_of_many_shards_keeps_few_files_open(tmp_path: Path) -> None:
    build(str(make_serials(tmp_path / "src", 700)), str(tmp_path / "o"), Recipe(shard_bytes=10_000), Job(workers=1))
    store = packer_reader.open(tmp_path / "o")
    assert store.manifest.shards > 100
    program = (  # in a process of its own: what other tests have left open would count
        "import os, resource, torch; from packer_reader import StreamDataset\n"
        "before = len(os.listdir('/proc/self/fd'))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (before + 100, before + 100))\n"
        f"ds = StreamDataset({str(tmp_path / 'o')!r}, batch_size=8, shuffle_buffer=20, with_id=True)\n"
        "print(sum(len(batch['id']) for batch in ds), len(os.listdir('/proc/self/fd')) - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    samples, opened = map(int, done.stdout.split())
    assert samples == 700
    assert opened < 100


def test_a_program_may_change_its_folder(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store.parent)
    ds = stream(Path(store.name))
    monkeypatch.chdir("/")
    assert sorted(sum(ids_of(ds), [])) == list(range(60))


def test_numpy_stays_numpy_through_the_loader(tar_store: Path) -> None:
    (batch, *_) = loader(stream(tar_store, decode="numpy"), num_workers=1)
    assert [type(batch[name]).__module__ for name in ("image", "label", "id")] == ["numpy"] * 3


def test_stores_and_data_sets_end_a_loop(store: Path) -> None:
    assert len(list(packer_reader.open(store))) == 60
    assert len(list(packer_reader.MapDataset(store))) == 60
    assert dict(packer_reader.open(store).columns).keys() >= {"label", "name"}
    with pytest.raises(UsageError, match="a sample number is a whole number, not 'a'"):
        packer_reader.open(store)["a"]  # type: ignore[index]


def test_transformed_batches_are_not_nested_either(tar_store: Path) -> None:
    for transform in (lambda b: (b["image"], b["label"]), lambda b: {"x": b["image"]}):
        ds = stream(tar_store, transform=transform)
        with pytest.raises(BatchError, match="whole batches already"):
            next(iter(DataLoader(ds)))
        assert len(list(DataLoader(ds, batch_size=None, num_workers=1))) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rename": {"image": "label"}}, "'label' names two fields"),
        ({"rename": {"image": "id"}}, "'id' names two fields, or is a name of the batch"),
        ({"decode": "bytes", "crop": packer_reader.CenterCrop(8)}, "need pixels"),
        ({"crop": 224}, "crop is 224"),
        ({"crop": packer_reader.RandomResizedCrop}, "crop is <class"),
        ({"flip": True}, "flip is True"),
        ({"transform": 3}, "transform is 3"),
        ({"fields": "image"}, "fields is 'image'"),
        ({"fields": 3}, "fields is 3"),
        ({"batch_size": True}, "batch_size is True"),
    ],
)
def test_arguments_that_would_mislead_are_refused(options: dict[str, Any], message: str, tar_store: Path) -> None:
    with pytest.raises(UsageError, match=message):
        stream(tar_store, **options)


@pytest.mark.parametrize("path", ["", None, 3])
def test_no_path_at_all_is_refused(path: Any) -> None:
    with pytest.raises(UsageError, match="the store's path is"):
        StreamDataset(path)


def test_a_star_import_leaves_the_builtins_alone() -> None:
    names: dict[str, Any] = {}
    exec("from packer_reader import *", names)
    assert "open" not in names
    assert "StreamDataset" in names
