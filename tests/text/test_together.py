"""Small batches of tokens that travel several at a time through `loader`, as if each had come alone."""

from __future__ import annotations

from multiprocessing.context import ForkContext, ForkProcess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

import packer_reader
from packer import tokenized
from packer_reader import StreamDataset, loader
from packer_reader.errors import StoreError
from tests.text.documents import built, words, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONTAINERS = ["tar", "lmdb"]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of sequences in each container, the tar in many small shards."""
    root = tmp_path_factory.mktemp("stores")
    source = write(root / "d.jsonl", words(500, seed=5, mean=30))
    for pack in ("concat", "bestfit"):
        for container in CONTAINERS:
            text = tokenized(pack=pack, seq_len=96)
            built(source, root / f"{pack}-{container}", text, container=container, shard_bytes=30_000)
    return root


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_batches_that_travel_together_come_one_by_one(workers: int, container: str, stores: Path) -> None:
    def stream() -> StreamDataset:
        return StreamDataset(stores / f"bestfit-{container}", batch_size=3, seed=9, with_id=True)

    assert stream().sent_together() == 4
    alone, together = stream(), loader(stream(), num_workers=workers)
    for _ in range(2):
        expected, found = list(alone), list(together)
        assert len(found) == len(expected) == len(together)
        for one, other in zip(expected, found, strict=True):
            assert one.keys() == other.keys()
            assert torch.equal(one["id"], other["id"])
            assert torch.equal(one["tokens"], other["tokens"])


def test_no_more_batches_travel_together_than_the_ring_has_slots_for(stores: Path) -> None:
    ds = StreamDataset(stores / "concat-tar", batch_size=3)
    assert [ds.sent_together(prefetch) for prefetch in (1, 2, 3, 4, 8, 100)] == [4, 4, 3, 2, 1, 1]


class Numbered(StreamDataset):
    """Says with each batch which worker read it."""

    def batch(self, batches: Any, number: int) -> Any:
        info = get_worker_info()
        return super().batch(batches, number) | {"worker": torch.tensor(-1 if info is None else info.id)}


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_short_epoch_is_shared_out_among_all_workers(workers: int, stores: Path) -> None:
    path = stores / "concat-tar"
    size = -(-len(packer_reader.open(path)) // (2 * workers))
    seen = [int(batch["worker"]) for batch in loader(Numbered(path, batch_size=size), num_workers=workers)]
    assert set(seen) == set(range(workers))


class Counting(StreamDataset):
    """Changes what is iterated over, as a data set may."""

    def __iter__(self) -> Any:
        return ({"tokens": batch["tokens"], "step": step} for step, batch in enumerate(super().__iter__()))


def test_a_data_set_that_changes_its_batches_sees_one_at_a_time(stores: Path) -> None:
    plain = [batch["tokens"] for batch in StreamDataset(stores / "concat-tar", batch_size=3)]
    found = list(loader(Counting(stores / "concat-tar", batch_size=3), num_workers=2))
    assert all(torch.equal(one, other["tokens"]) for one, other in zip(plain, found, strict=True))
    assert [batch["step"] for batch in found] == [step // 2 for step in range(len(found))]


class Meanwhile(ForkContext):
    """Does something between the starts of two workers."""

    def __init__(self, something: Callable[[], None]) -> None:
        super().__init__()
        self._starting = iter((lambda: None, something))

    def Process(self, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]  # noqa: N802
        next(self._starting)()
        return ForkProcess(*arguments, **options)


@pytest.mark.parametrize("stock", [False, True])
def test_loaders_that_start_at_the_same_time_do_not_disturb_each_other(stores: Path, *, stock: bool) -> None:
    ds = StreamDataset(stores / "concat-tar", batch_size=3, with_id=True)
    found = list[Any]()

    def another() -> None:
        found.extend(DataLoader(ds, batch_size=None, num_workers=2) if stock else loader(ds, num_workers=2))

    outer = list(loader(ds, num_workers=2, multiprocessing_context=Meanwhile(another)))
    for batches in (outer, found):
        assert sorted(n for batch in batches for n in batch["id"].tolist()) == list(range(len(ds.store)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_fails_does_so_in_its_turn(workers: int, stores: Path) -> None:
    ds = StreamDataset(stores / "concat-lmdb", batch_size=3, seed=9, with_id=True)
    numbers = [batch["id"].tolist() for batch in ds]
    broken = 6
    index = ds.store.index(0)
    column = np.array(index.size)
    column[:, numbers[broken][1]] = 60
    object.__setattr__(index, "size", column)
    ds.set_epoch(0)
    batches = iter(loader(ds, num_workers=workers))
    assert [next(batches)["id"].tolist() for _ in range(broken)] == numbers[:broken]
    with pytest.raises(StoreError, match="another length"):
        next(batches)
