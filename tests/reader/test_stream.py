"""Streams: each sample once per epoch, one order whoever reads it, and exactly on from where it stopped."""

from __future__ import annotations

import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import packer_reader
from packer import Job, Recipe, build
from packer_reader import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize, StreamDataset, loader
from packer_reader.errors import BatchError, NotFoundError, StateError, UsageError
from tests.conftest import make_serials, serial_of

if TYPE_CHECKING:
    from pathlib import Path

START_METHODS = ["fork", "forkserver", "spawn"]


TRANSPORT: dict[str, Any] = {}


@pytest.fixture(autouse=True, params=["ring", pytest.param("plain", marks=pytest.mark.slow)])
def _over_both_transports(request: pytest.FixtureRequest) -> None:
    TRANSPORT["transport"] = request.param


def ids_of(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def stream(path: Path, **options: Any) -> StreamDataset:
    return StreamDataset(path, **({"batch_size": 8, "shuffle_buffer": 20, "with_id": True} | TRANSPORT | options))


def sequence(path: Path, epoch: int = 0, **options: Any) -> list[list[int]]:
    ds = stream(path, **options)
    ds.set_epoch(epoch)
    return ids_of(ds)


def test_a_batch_is_pixels_and_labels(store: Path) -> None:
    for batch in stream(store):
        images, labels = batch["image"], batch["label"]
        assert (images.dtype, images.shape[1:], labels.dtype) == (torch.uint8, (3, 16, 16), torch.int64)
        assert images.is_contiguous(memory_format=torch.channels_last)
        for image, label, number in zip(images, labels, batch["id"], strict=True):
            serial = serial_of(image.permute(1, 2, 0).numpy())
            assert serial % 3 == label
            assert serial == serial_of(packer_reader.open(store)[int(number)]["image"])


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_each_sample_once_over_ranks_and_workers(world: int, workers: int, store: Path) -> None:
    seen: Counter[int] = Counter()
    lengths = set()
    for rank in range(world):
        ds = stream(store, rank=rank, world_size=world)
        batches = ids_of(DataLoader(ds, batch_size=None, num_workers=workers))
        assert len(batches) == len(ds)
        lengths.add(len(batches))
        seen.update(i for batch in batches for i in batch)
    assert seen == Counter(range(60))
    assert len(lengths) == 1


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("world", [1, 2])
def test_single_samples_come_once(workers: int, world: int, store: Path) -> None:
    seen: Counter[int] = Counter()
    for rank in range(world):
        ds = stream(store, batch_size=None, rank=rank, world_size=world)
        found = [int(i) for batch in DataLoader(ds, batch_size=7, num_workers=workers) for i in batch["id"]]
        assert len(found) == len(ds)
        seen.update(found)
    assert seen == Counter(range(60))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_sequence_does_not_depend_on_workers(workers: int, store: Path) -> None:
    assert ids_of(DataLoader(stream(store), batch_size=None, num_workers=workers)) == sequence(store)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("container", ["tar", "lmdb"])
def test_tiny_stores_and_more_workers_than_samples(count: int, container: Any, tmp_path: Path) -> None:
    out = tmp_path / "o"
    build(str(make_serials(tmp_path / "src", count)), str(out), Recipe(container=container), Job(workers=1))
    for options in ({}, {"batch_size": 1}, {"batch_size": 64}, {"shuffle_buffer": 1000}, {"shuffle_buffer": 1}):
        ds = stream(out, **options)
        for workers in (0, 5):
            assert sorted(sum(ids_of(DataLoader(ds, batch_size=None, num_workers=workers)), [])) == list(range(count))


def test_epochs_differ_and_repeat_for_a_seed(store: Path) -> None:
    ds = stream(store)
    epochs = [ids_of(ds) for _ in range(3)]
    assert len({str(epoch) for epoch in epochs}) == 3
    assert epochs == [sequence(store, epoch) for epoch in range(3)]
    assert epochs[0] != sequence(store, seed=1)


@pytest.mark.parametrize("start", START_METHODS)
@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_count_up_in_workers(start: str, persistent: bool, tar_store: Path) -> None:
    ds = stream(tar_store)
    batches = DataLoader(
        ds, batch_size=None, num_workers=2, persistent_workers=persistent, multiprocessing_context=start
    )
    assert [ids_of(batches) for _ in range(2)] == [sequence(tar_store, epoch) for epoch in (0, 1)]
    ds.set_epoch(7)
    assert [ids_of(batches) for _ in range(2)] == [sequence(tar_store, epoch) for epoch in (7, 8)]
    assert ds.epoch == 8


@pytest.mark.parametrize("start", START_METHODS)
def test_lmdb_may_be_open_in_the_parent(start: str, lmdb_store: Path) -> None:
    ds, other = stream(lmdb_store), stream(lmdb_store, seed=1)
    expected = [ids_of(ds), ids_of(other)]
    for held, ids in zip((ds, other), expected, strict=True):
        held.set_epoch(0)
        assert ids_of(DataLoader(held, batch_size=None, num_workers=2, multiprocessing_context=start)) == ids
    assert len(ids_of(ds)) == len(expected[0])


def test_a_program_that_seeds_torch_each_epoch_gets_other_orders(tar_store: Path) -> None:
    ds = stream(tar_store)
    found = []
    for _ in range(3):
        torch.manual_seed(0)
        found.append(ids_of(DataLoader(ds, batch_size=None, num_workers=2)))
    assert found == [sequence(tar_store, epoch) for epoch in range(3)]


def test_leaving_early_still_counts_the_epoch(tar_store: Path) -> None:
    ds = stream(tar_store)
    batches = DataLoader(ds, batch_size=None, num_workers=2, persistent_workers=True)
    next(iter(batches))
    assert ids_of(batches) == sequence(tar_store, 1)


def test_changing_the_number_of_workers_keeps_counting(tar_store: Path) -> None:
    ds = stream(tar_store)
    found = [ids_of(DataLoader(ds, batch_size=None, num_workers=workers)) for workers in (1, 3, 0, 2)]
    assert found == [sequence(tar_store, epoch) for epoch in range(4)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 3, 8])
@pytest.mark.parametrize("batch_size", [8, 5])
def test_resume_goes_on_with_the_next_sample(workers: int, taken: int, batch_size: int, store: Path) -> None:
    first = stream(store)
    first.set_epoch(4)
    batches = ids_of(DataLoader(first, batch_size=None, num_workers=2))
    state = pickle.loads(pickle.dumps(first.state_dict(batches=taken)))
    second = stream(store, batch_size=batch_size)
    second.load_state_dict(state)
    resumed = DataLoader(second, batch_size=None, num_workers=workers)
    rest = sum(ids_of(resumed), [])
    left = sum(batches[taken:], [])
    assert rest == (left or sum(sequence(store, 5), []))
    assert sum(ids_of(resumed), []) == sum(sequence(store, 5 if left else 6), [])


def test_a_resumed_run_can_be_resumed_again(tar_store: Path) -> None:
    whole = sum(sequence(tar_store), [])
    ds = stream(tar_store)
    list(zip(range(2), ds, strict=False))
    for batches in (2, 1):
        state = ds.state_dict(batches)
        ds = stream(tar_store, batch_size=6)
        ds.load_state_dict(state)
        rest = sum(ids_of(ds), [])
    assert rest == whole[16 + 6 :]


def test_resume_with_another_world_size(tar_store: Path) -> None:
    ranks = [stream(tar_store, batch_size=4, rank=rank, world_size=2) for rank in (0, 1)]
    parts = [ids_of(rank) for rank in ranks]
    states = [rank.state_dict(3) for rank in ranks]
    assert states[0] == states[1]
    alone = stream(tar_store)
    alone.load_state_dict(states[0])
    done = [i for step in range(3) for part in parts for i in part[step]]
    assert done + sum(ids_of(alone), []) == sum(sequence(tar_store), [])


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"seed": 3}, "seed"),
        ({"shuffle_buffer": 30}, "shuffle_buffer"),
        ({"lanes": 2}, "lanes"),
        ({"block": 3}, "block"),
    ],
)
def test_a_state_of_another_order_is_refused(options: dict[str, Any], difference: str, tar_store: Path) -> None:
    with pytest.raises(StateError, match=rf"saved with another .*{difference} \(was"):
        stream(tar_store, **options).load_state_dict(stream(tar_store).state_dict(1))


def test_a_state_of_another_store_is_refused(tar_store: Path, tmp_path: Path) -> None:
    build(str(make_serials(tmp_path / "s", 60, "ab")), str(tmp_path / "o"), Recipe(shard_bytes=30_000), Job(workers=1))
    with pytest.raises(StateError, match="saved with another store"):
        stream(tmp_path / "o").load_state_dict(stream(tar_store).state_dict(1))
    with pytest.raises(StateError, match="the state lacks version"):
        stream(tar_store).load_state_dict({"epoch": 1, "samples": 4})


@pytest.mark.parametrize("world", [1, 2, 3])
def test_padding_makes_equal_batches(world: int, store: Path) -> None:
    seen: Counter[int] = Counter()
    for rank in range(world):
        batches = list(stream(store, batch_size=7, pad=True, rank=rank, world_size=world))
        assert all(len(batch["id"]) == 7 for batch in batches)
        seen.update(i for batch in batches for i in batch["id"][batch["valid"]].tolist())
    assert seen == Counter(range(60))


def test_drop_last_leaves_a_part_out(store: Path) -> None:
    batches = ids_of(stream(store, batch_size=7, drop_last=True))
    assert [len(batch) for batch in batches] == [7] * 8


def test_a_last_batch_too_small_for_the_ranks_is_an_error(store: Path) -> None:
    with pytest.raises(BatchError, match="last global batch has 4 samples for 7 ranks.*drop_last=True, or pad=True"):
        list(stream(store, rank=0, world_size=7))


def test_drop_last_may_leave_nothing(store: Path) -> None:
    ds = StreamDataset(store, batch_size=61, drop_last=True)
    assert len(ds) == 0
    assert list(ds) == []


def test_lanes_keep_every_promise(store: Path) -> None:
    found = sequence(store, lanes=4)
    assert sorted(sum(found, [])) == list(range(60))
    assert [len(batch) for batch in found[:-1]] == [8] * 7


def test_forgetting_batch_size_none_is_one_line(store: Path) -> None:
    with pytest.raises(BatchError, match=r"DataLoader\(ds, batch_size=None, \.\.\.\)"):
        next(iter(DataLoader(stream(store))))


@pytest.fixture(scope="module")
def ragged_store(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ragged") / "o"
    build(str(photos), str(out), Recipe(), Job(workers=1))
    return out


def test_images_that_cannot_be_stacked_are_an_error_at_once(ragged_store: Path) -> None:
    with pytest.raises(BatchError, match=r"differ in size and cannot be stacked: give crop=RandomResizedCrop\(224\)"):
        stream(ragged_store)


def test_ragged_images_come_as_lists(ragged_store: Path) -> None:
    for batch in stream(ragged_store, ragged=True):
        opened = packer_reader.open(ragged_store)
        for image, number in zip(batch["image"], batch["id"].tolist(), strict=True):
            assert (image.permute(1, 2, 0).numpy() == opened[number]["image"]).all()


@pytest.mark.parametrize("options", [{"ragged": True}, {"decode": "bytes"}])
@pytest.mark.parametrize("start", START_METHODS)
def test_lists_come_through_workers_as_they_are(options: dict[str, Any], start: str, ragged_store: Path) -> None:
    here = list(stream(ragged_store, **options))
    batches = DataLoader(stream(ragged_store, **options), batch_size=None, num_workers=2, multiprocessing_context=start)
    for one, other in zip(here, batches, strict=True):
        assert [image.stride() for image in one["image"]] == [image.stride() for image in other["image"]]
        assert all(torch.equal(a, b) for a, b in zip(one["image"], other["image"], strict=True))
        assert torch.equal(one["label"], other["label"])


@pytest.mark.parametrize(
    ("crop", "size"),
    [(RandomResizedCrop(24), (24, 24)), (CenterCrop((20, 30)), (20, 30)), (Resize((31, 33)), (31, 33))],
)
def test_crops_make_one_size(crop: Any, size: tuple[int, int], ragged_store: Path) -> None:
    for batch in stream(ragged_store, crop=crop, flip=HorizontalFlip()):
        assert tuple(batch["image"].shape[2:]) == size


def test_a_samples_crop_depends_on_seed_and_epoch_alone(ragged_store: Path) -> None:
    def images(epoch: int, workers: int, **options: Any) -> dict[int, bytes]:
        ds = stream(ragged_store, crop=RandomResizedCrop(16), flip=HorizontalFlip(), **options)
        ds.set_epoch(epoch)
        batches = DataLoader(ds, batch_size=None, num_workers=workers)
        return {int(i): x.numpy().tobytes() for b in batches for i, x in zip(b["id"], b["image"], strict=True)}

    first = images(0, 0)
    assert first == images(0, 2, batch_size=5)
    assert sum(first[i] != other for i, other in images(1, 0).items()) > 20
    assert sum(first[i] != other for i, other in images(0, 0, seed=1).items()) > 20


def test_decode_forms(tar_store: Path) -> None:
    batch = next(iter(stream(tar_store, decode="numpy")))
    assert isinstance(batch["image"], np.ndarray)
    assert batch["image"].shape == (8, 16, 16, 3)
    assert isinstance(batch["label"], np.ndarray)
    assert next(iter(stream(tar_store, decode="pil")))["image"][0].size == (16, 16)
    encoded = next(iter(stream(tar_store, decode="bytes")))
    stored = packer_reader.open(tar_store).encoded(int(encoded["id"][0]))["png"]
    assert bytes(encoded["image"][0].numpy()) == stored


def test_fields_rename_and_transform(tar_store: Path) -> None:
    ds = stream(tar_store, fields=["label"], rename={"label": "y"}, transform=lambda batch: batch | {"seen": True})
    assert set(next(iter(ds))) == {"y", "id", "seen"}
    with pytest.raises(NotFoundError, match="no field 'mask': the store has image, label"):
        stream(tar_store, fields=["mask"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"shuffle_buffer": -1}, "shuffle_buffer is -1"),
        ({"shuffle_buffer": "much"}, "shuffle_buffer is 'much'"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"decode": "jax"}, "decode is 'jax'"),
        ({"drop_last": True, "pad": True}, "both given"),
        ({"batch_size": None, "pad": True}, "give batch_size as well"),
        ({"rank": 1}, "rank and world_size are 1 and None: give both"),
        ({"rank": 2, "world_size": 2}, "are 2 and 2"),
        ({"lanes": 0}, "lanes is 0"),
        ({"block": 0}, "block is 0"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str, tar_store: Path) -> None:
    with pytest.raises(UsageError, match=message):
        stream(tar_store, **options)


def test_lanes_must_divide_the_batch(tar_store: Path) -> None:
    with pytest.raises(UsageError, match="lanes is 3, it must divide the global batch of 8"):
        len(stream(tar_store, lanes=3))


def test_a_buffer_in_bytes_becomes_samples(tar_store: Path) -> None:
    ds = stream(tar_store, shuffle_buffer="1KB")
    assert ds.shuffle_buffer == 1000 // (ds.store.manifest.bytes // 60)
    assert sorted(sum(ids_of(ds), [])) == list(range(60))
    assert sequence(tar_store, shuffle_buffer=0) == [list(range(n, min(60, n + 8))) for n in range(0, 60, 8)]


def test_the_loader_counts_and_resumes(tar_store: Path) -> None:
    batches = loader(stream(tar_store), num_workers=2)
    assert len(batches) == 8
    running = iter(batches)
    taken = [next(running)["id"].tolist() for _ in range(3)]
    state = batches.state_dict()
    again = loader(stream(tar_store), num_workers=1)
    again.load_state_dict(state)
    assert taken + ids_of(again) == sequence(tar_store)
    assert ids_of(again) == sequence(tar_store, 1)
    assert [again.state_dict()[name] for name in ("epoch", "samples")] == [2, 0]


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ({"batch_size": None}, {}, "needs a StreamDataset with batch_size="),
        ({}, {"batch_size": 4}, "batch_size is for the data set to say"),
        ({}, {"drop_last": True}, "drop_last is for the data set"),
        ({}, {"in_order": False}, "in_order=False"),
    ],
)
def test_the_loader_refuses_what_would_go_wrong(
    data: dict[str, Any], options: dict[str, Any], message: str, tar_store: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        loader(stream(tar_store, **data), **options)


def test_a_moved_store_works(tar_store: Path, tmp_path: Path) -> None:
    moved = tmp_path / "else where"
    moved.mkdir()
    for path in tar_store.rglob("*"):
        target = moved / path.relative_to(tar_store)
        target.mkdir(parents=True, exist_ok=True) if path.is_dir() else target.write_bytes(path.read_bytes())
    assert sequence(moved) == sequence(tar_store)


def test_threads_that_begin_at_the_same_time_get_batches_of_their_own(store: Path) -> None:
    def seen(ds: StreamDataset, began: Barrier) -> list[int]:
        batches = iter(ds)
        began.wait()
        return sorted(number for batch in batches for number in batch["id"].tolist())

    with ThreadPoolExecutor(2) as pool:
        for _ in range(60):
            ds, began = StreamDataset(store, batch_size=8, with_id=True), Barrier(2)
            for found in [pool.submit(seen, ds, began) for _ in range(2)]:
                assert found.result() == list(range(60))
