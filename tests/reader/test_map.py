"""Samples by number, under any sampler."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, WeightedRandomSampler

import packer_reader
from packer import Job, Recipe, build
from packer_reader import HorizontalFlip, MapDataset, RandomResizedCrop
from packer_reader.errors import NotFoundError
from tests.conftest import serial_of

if TYPE_CHECKING:
    from pathlib import Path


def test_samples_by_number(store: Path) -> None:
    ds = MapDataset(store, with_id=True)
    assert len(ds) == 60
    for number in (0, 17, -1):
        sample = ds[number]
        assert sample["id"] == number % 60
        serial = serial_of(sample["image"].permute(1, 2, 0).numpy())
        assert (sample["label"], ds.targets[number]) == (serial % 3, serial % 3)
    assert (ds.classes, ds.class_to_idx) == (["a", "b", "c"], {"a": 0, "b": 1, "c": 2})


def test_numbers_out_of_range_are_named(store: Path) -> None:
    with pytest.raises(NotFoundError, match="no sample 60: the store has 60"):
        MapDataset(store)[60]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffled_loader_sees_everything(workers: int, store: Path) -> None:
    batches = list(DataLoader(MapDataset(store, with_id=True), batch_size=9, shuffle=True, num_workers=workers))
    assert sorted(torch.cat([batch["id"] for batch in batches]).tolist()) == list(range(60))
    assert batches[0]["image"].shape == (9, 3, 16, 16)


def test_samplers_of_any_kind(store: Path) -> None:
    ds = MapDataset(store, with_id=True)
    weights = [float(label == 1) for label in ds.targets]
    batch = next(iter(DataLoader(ds, batch_size=20, sampler=WeightedRandomSampler(weights, 20))))
    assert set(batch["label"].tolist()) == {1}
    halves: list[DistributedSampler[Any]] = [DistributedSampler(ds, num_replicas=2, rank=rank) for rank in (0, 1)]
    seen = [i for half in halves for b in DataLoader(ds, batch_size=8, sampler=half) for i in b["id"].tolist()]
    assert sorted(seen) == list(range(60))


def test_random_crops_follow_torchs_generator(store: Path) -> None:
    ds = MapDataset(
        store, crop=RandomResizedCrop(8, scale=(0.1, 0.2)), flip=HorizontalFlip(), transform=lambda s: s["image"]
    )
    assert ds[3].shape == (3, 8, 8)


def test_stores_survive_pickling_after_use(store: Path) -> None:
    opened = packer_reader.open(store)
    first = opened[5]["image"]
    assert (pickle.loads(pickle.dumps(opened))[5]["image"] == first).all()
    assert "60 samples" in repr(opened)
    assert repr(pickle.loads(pickle.dumps(MapDataset(store)))) == repr(MapDataset(store))


def test_a_number_that_comes_twice_is_drawn_twice_and_shares_nothing(store: Path) -> None:
    drawn = MapDataset(store, crop=RandomResizedCrop(6), flip=HorizontalFlip(), with_id=True)
    numbers = [5, 7, 5, 0, 5, -55]
    assert [sample["id"] for sample in drawn.__getitems__(numbers)] == [5, 7, 5, 0, 5, 5]
    pictures = MapDataset(store, decode="pil").__getitems__([5, 5])
    assert pictures[0]["image"] is not pictures[1]["image"]
    assert MapDataset(store).__getitems__([]) == []


def test_each_time_that_a_number_comes_it_has_a_crop_of_its_own(photos: Path, tmp_path: Path) -> None:
    build(str(photos), str(tmp_path / "o"), Recipe(resize=(32,), fit="crop"), Job(workers=1))
    ds = MapDataset(tmp_path / "o", crop=RandomResizedCrop(16))
    seen = {sample["image"].numpy().tobytes() for sample in ds.__getitems__([3] * 8)}
    assert len(seen) == 8
