"""Damage met while reading: an error that names it, or a count of what was left out; never a crash or a hang."""

from __future__ import annotations

import copy
import logging
import pickle
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

import packer_reader
from packer_reader import StreamDataset
from packer_reader.errors import BatchError, DamageError, StoreError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

HURT = (3, 17, 41)


@pytest.fixture
def hurt(store: Path, tmp_path: Path) -> Path:
    """A copy of the store with three samples damaged."""
    hurt = tmp_path / "copy"
    shutil.copytree(store, hurt)
    opened = packer_reader.open(store)
    data = {path: bytearray(path.read_bytes()) for path in hurt.iterdir() if path.suffix in {".tar", ".mdb"}}
    for number in HURT:
        needle = opened.encoded(number)["png"]
        ((path, place),) = [(path, found) for path, held in data.items() if (found := held.find(needle)) >= 0]
        data[path][place + len(needle) // 2] ^= 1
    for path, held in data.items():
        path.write_bytes(held)
    return hurt


def stream(path: Path, **options: Any) -> StreamDataset:
    return StreamDataset(path, **({"batch_size": 8, "shuffle_buffer": 20, "with_id": True} | options))


@pytest.mark.parametrize("workers", [0, 2])
def test_damage_is_an_error_that_names_the_sample(workers: int, hurt: Path) -> None:
    with pytest.raises(DamageError, match=r"is damaged at key \d+ .sample (3|17|41), made from .*packer verify --full"):
        list(DataLoader(stream(hurt), batch_size=None, num_workers=workers))


@pytest.mark.parametrize("batch_size", [8, None])
@pytest.mark.parametrize("workers", [0, 2])
def test_damage_may_be_skipped_and_is_counted(workers: int, batch_size: int | None, hurt: Path) -> None:
    ds = stream(hurt, on_error="skip", batch_size=batch_size)
    for epoch in (1, 2):
        seen = Counter[int]()
        for batch in DataLoader(ds, batch_size=None, num_workers=workers):
            seen.update(batch["id"].tolist() if batch_size else [batch["id"]])
        assert seen == Counter(set(range(60)) - set(HURT))
        assert ds.skipped == len(HURT) * epoch


def test_what_was_skipped_is_said_at_the_end_of_an_epoch(hurt: Path, caplog: pytest.LogCaptureFixture) -> None:
    ds = stream(hurt, on_error="skip")
    with caplog.at_level(logging.WARNING, "packer_reader"):
        list(ds)
        list(ds)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("epoch 0: 3 damaged samples of")
    assert "packer verify --full" in first
    assert second.startswith("epoch 1: 3 damaged samples of")


def test_a_lost_shard_is_no_damaged_sample(tar_store: Path, tmp_path: Path) -> None:
    hurt = tmp_path / "copy"
    shutil.copytree(tar_store, hurt)
    ds = stream(hurt, on_error="skip")
    (hurt / "train-000001.tar").unlink()
    with pytest.raises(StoreError, match=r"train-000001.tar is missing"):
        list(ds)
    assert ds.skipped == 0


def test_a_batch_without_a_sound_sample_ends_the_run(hurt: Path) -> None:
    with pytest.raises(BatchError, match=r"every sample of a batch is damaged.*is damaged at key \d+ .sample"):
        list(stream(hurt, on_error="skip", batch_size=1))


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda ds: pickle.loads(pickle.dumps(ds))])
def test_copies_count_in_their_workers(clone: Any, hurt: Path) -> None:
    ds = clone(stream(hurt, on_error="skip"))
    list(DataLoader(ds, batch_size=None, num_workers=2))
    assert ds.skipped == len(HURT)


def test_what_was_broken_off_is_said_with_its_epoch(hurt: Path, caplog: pytest.LogCaptureFixture) -> None:
    ds = stream(hurt, on_error="skip", shuffle_buffer=0)
    with caplog.at_level(logging.WARNING, "packer_reader"):
        next(iter(ds))
        list(ds)
    texts = [record.getMessage()[:28] for record in caplog.records]
    assert texts == ["epoch 0: 1 damaged samples o", "epoch 1: 3 damaged samples o"]


def test_padding_masks_what_is_left(hurt: Path) -> None:
    batches = list(stream(hurt, on_error="skip", batch_size=16, pad=True))
    assert all(len(batch["valid"]) == len(batch["id"]) for batch in batches)
    assert Counter(n for b in batches for n in b["id"][b["valid"]].tolist()) == Counter(set(range(60)) - set(HURT))


def test_a_replaced_store_is_never_skipped(hurt: Path, tar_store: Path) -> None:
    running = iter(stream(hurt, on_error="skip", shuffle_buffer=0, batch_size=1))
    next(running)
    hurt.rename(hurt.with_name("aside"))
    shutil.copytree(tar_store, hurt)
    with pytest.raises(DamageError, match="was replaced while it was read"):
        list(running)


def test_other_policies_are_refused(tar_store: Path) -> None:
    with pytest.raises(UsageError, match="on_error is 'ignore', it must be 'raise' or 'skip'"):
        stream(tar_store, on_error="ignore")
