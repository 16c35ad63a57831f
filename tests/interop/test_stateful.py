"""torchdata's StatefulDataLoader: it keeps the state of each worker's iterator, and puts it back into new ones."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from packer_reader import StreamDataset, loader
from packer_reader.errors import StateError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*set_vital")]


def ids_of(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def stateful(path: Path, workers: int, batch_size: int | None = 8, **options: Any) -> Any:
    ds = StreamDataset(path, batch_size=batch_size, shuffle_buffer=20, with_id=True)
    return StatefulDataLoader(ds, batch_size=None if batch_size else 8, num_workers=workers, **options)


@pytest.mark.parametrize("batch_size", [8, None])
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("taken", [4, *(pytest.param(taken, marks=pytest.mark.slow) for taken in (1, 7))])
def test_it_goes_on_with_the_next_batch(batch_size: int | None, workers: int, taken: int, store: Path) -> None:
    whole = stateful(store, workers, batch_size)
    first_epochs = [ids_of(whole), ids_of(whole), ids_of(whole)]
    batches, seen, state = stateful(store, workers, batch_size), list[list[int]](), None
    ids_of(batches)
    for batch in batches:
        seen.append(batch["id"].tolist())
        if len(seen) == taken:
            state = pickle.loads(pickle.dumps(batches.state_dict()))
            break
    later = stateful(store, workers, batch_size)
    later.load_state_dict(state)
    assert seen + ids_of(later) == first_epochs[1]
    assert ids_of(later) == first_epochs[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_behind_an_epoch_is_the_next_ones_beginning(workers: int, store: Path) -> None:
    whole = stateful(store, workers)
    epochs = [ids_of(whole), ids_of(whole)]
    batches = stateful(store, workers)
    assert ids_of(batches) == epochs[0]
    later = stateful(store, workers)
    later.load_state_dict(batches.state_dict())
    assert ids_of(later) == epochs[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_persistent_workers_count_on(workers: int, store: Path) -> None:
    whole = stateful(store, workers)
    epochs = [ids_of(whole) for _ in range(3)]
    batches = iter(first := stateful(store, workers))
    seen = [next(batches)["id"].tolist()]
    later = stateful(store, workers, persistent_workers=workers > 0)
    later.load_state_dict(first.state_dict())
    assert [seen + ids_of(later), ids_of(later), ids_of(later)] == epochs


def test_the_states_of_other_orders_and_shares_are_refused(tar_store: Path) -> None:
    running = iter(ds := StreamDataset(tar_store, batch_size=8))
    next(running)
    other = StreamDataset(tar_store, batch_size=8, seed=1)
    with pytest.raises(StateError, match="seed .was 0, is 1"):
        iter(other).load_state_dict(ds.state_dict())
    share = ds.state_dict() | {"worker": 1, "workers": 2}
    with pytest.raises(StateError, match=r"worker 1 of 2, this is worker 0 of 1: .*packer_reader.loader"):
        iter(ds).load_state_dict(share)
    with pytest.raises(StateError, match="the state is one worker's of a StatefulDataLoader"):
        loader(ds, num_workers=1).load_state_dict(share)
    ds.load_state_dict(share)
    with pytest.raises(StateError, match="a state of one worker, or of single samples, was loaded"):
        next(iter(ds))
    ds.set_epoch(3)
    assert next(iter(ds))["label"].shape == (8,)


@pytest.mark.parametrize(
    ("workers", "sizes"), [(0, (8, 16)), (0, (8, 4)), (0, (8, None)), (0, (None, 8)), (2, (8, 16))]
)
def test_a_workers_state_is_for_its_batch_size(
    workers: int, sizes: tuple[int | None, int | None], tar_store: Path
) -> None:
    batches = stateful(tar_store, workers, sizes[0])
    running = iter(batches)
    seen = [n for _ in range(3) for n in next(running)["id"].tolist()]
    state = batches.state_dict()
    later = stateful(tar_store, workers, sizes[1])
    if workers == 0 and sizes[0] is not None:  # who reads alone counts samples
        later.load_state_dict(state)
        assert sorted(seen + sum(ids_of(later), [])) == list(range(60))
        return
    later.load_state_dict(state)
    with pytest.raises(StateError, match=r"the state counts batches of|a state of one worker"):
        ids_of(later)


def test_behind_the_last_batch_the_next_epoch_begins(tar_store: Path) -> None:
    batches = stateful(tar_store, 0)
    running = iter(batches)
    for _ in range(8):
        next(running)
    later = stateful(tar_store, 0)
    later.load_state_dict(batches.state_dict())
    assert sorted(sum(ids_of(later), [])) == list(range(60))


def test_only_the_process_that_reads_knows_what_it_gave(tar_store: Path) -> None:
    ds = StreamDataset(tar_store, batch_size=8)
    with pytest.raises(UsageError, match="give state_dict.batches="):
        ds.state_dict()
    running = iter(ds)
    next(running), next(running)
    assert ds.state_dict() == ds.state_dict(batches=2)
