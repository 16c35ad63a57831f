"""Promises about reading tokens: what was stored, once, at any length, and exactly on after a break."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import packer_reader
from packer import tokenized
from packer_reader import MapDataset, Ragged, StreamDataset, document_ids, loader, position_ids
from packer_reader.errors import NotFoundError, StateError, StoreError, UsageError
from packer_reader.stores.rows import gather_ragged
from tests.reader.test_memory import masked_arrays, measured
from tests.text.documents import END, built, words, write

if TYPE_CHECKING:
    from pathlib import Path

CONTAINERS = ["tar", "lmdb"]
PACKS = ["none", "concat", "bestfit"]
LENGTH = 96


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of each pack in each container, tars in many small shards."""
    root = tmp_path_factory.mktemp("stores")
    source = write(root / "d.jsonl", words(500, seed=5, mean=30))
    for pack in PACKS:
        text = tokenized(pack=pack, seq_len=None if pack == "none" else LENGTH)
        for container in CONTAINERS:
            built(source, root / f"{pack}-{container}", text, container=container, shard_bytes=30_000)
    return root


def epoch(path: Path, workers: int, **options: Any) -> list[dict[str, Any]]:
    ds = StreamDataset(path, **({"batch_size": 7, "with_id": True, "seed": 3} | options))
    return list(DataLoader(ds, batch_size=None, num_workers=workers))


@pytest.mark.parametrize("transport", ["ring", "plain"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("pack", PACKS)
def test_batches_hold_what_is_stored(pack: str, container: str, workers: int, transport: Any, stores: Path) -> None:
    store = packer_reader.open(stores / f"{pack}-{container}")
    seen = []
    for batch in epoch(stores / f"{pack}-{container}", workers, transport=transport):
        for place, number in enumerate(batch["id"].tolist()):
            sample = store[number]
            for name in sample.keys() - {"n_valid"}:
                assert batch[name][place].tolist() == sample[name].tolist()
            assert pack == "none" or batch["n_valid"][place] == sample["n_valid"]
        assert batch["tokens"].values.dtype == torch.int64 if pack == "none" else batch["tokens"].dtype == torch.int64
        seen += batch["id"].tolist()
    assert sorted(seen) == list(range(len(store)))


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("pack", ["concat", "bestfit"])
def test_the_order_is_the_same_for_any_workers(pack: str, container: str, stores: Path) -> None:
    path = stores / f"{pack}-{container}"
    orders = [[batch["tokens"].tolist() for batch in epoch(path, workers)] for workers in (0, 1, 3)]
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize("seq_len", [32, 100, 4096, 10**6])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("container", CONTAINERS)
def test_documents_are_read_at_any_length(container: str, workers: int, seq_len: int, stores: Path) -> None:
    store = packer_reader.open(stores / f"none-{container}")
    documents = [sample["tokens"] for sample in store]
    stream = np.concatenate(documents)
    borders = np.cumsum([len(one) for one in documents])
    seen = []
    for batch in epoch(stores / f"none-{container}", workers, seq_len=seq_len):
        for place, number in enumerate(batch["id"].tolist()):
            start, stop = number * seq_len, min((number + 1) * seq_len, len(stream))
            valid = int(batch["n_valid"][place])
            assert valid == stop - start
            assert (batch["tokens"][place, :valid].numpy() == stream[start:stop]).all()
            assert (batch["tokens"][place, valid:] == END).all()
            inner = borders[(borders > start) & (borders < stop)] - start
            assert batch["cu_seqlens"][place].tolist() == [0, *inner.tolist(), valid]
        seen += batch["id"].tolist()
    assert sorted(seen) == list(range(-(-len(stream) // seq_len)))


@pytest.mark.parametrize("options", [{}, {"seq_len": 64}])
@pytest.mark.parametrize("container", CONTAINERS)
def test_one_sample_by_number(container: str, options: dict[str, Any], stores: Path) -> None:
    path = stores / f"none-{container}" if options else stores / f"bestfit-{container}"
    ds = MapDataset(path, with_id=True, **options)
    by_id = {int(n): b["tokens"][place] for b in epoch(path, 0, **options) for place, n in enumerate(b["id"])}
    assert len(ds) == len(by_id)
    for number in (0, 5, len(ds) - 1, -1):
        sample = ds[number]
        assert torch.equal(sample["tokens"], by_id[sample["id"]])


@pytest.mark.parametrize("options", [{}, {"seq_len": 64}])
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (1, 3), (0, 0)])
def test_an_epoch_goes_on_with_another_number_of_workers(
    before: int, after: int, options: dict[str, Any], stores: Path
) -> None:
    path = stores / ("none-tar" if options else "concat-lmdb")

    def stream(batch: int) -> StreamDataset:
        return StreamDataset(path, batch_size=batch, seed=9, **options)

    whole = [row for batch in loader(stream(4), num_workers=0) for row in batch["tokens"].tolist()]
    first = loader(stream(4), num_workers=before)
    taken: list[list[int]] = []
    for step, batch in enumerate(first, 1):
        taken += batch["tokens"].tolist()
        if step == 5:
            state = first.state_dict()
            break
    second = loader(stream(6), num_workers=after)
    second.load_state_dict(state)
    taken += [row for batch in second for row in batch["tokens"].tolist()]
    assert taken == whole
    stock = StreamDataset(path, batch_size=4, seed=9, **options)
    iterator = iter(stock)
    for _ in range(5):
        next(iterator)
    assert stock.state_dict()["samples"] == 20  # of what was given, not of what was found ahead


def test_a_state_is_of_one_length(stores: Path) -> None:
    one = StreamDataset(stores / "none-tar", batch_size=4, seq_len=64)
    other = StreamDataset(stores / "none-tar", batch_size=4, seq_len=65)
    with pytest.raises(StateError):
        other.load_state_dict(one.state_dict(batches=3))


@pytest.mark.parametrize("pack", PACKS)
def test_forms_of_tokens(pack: str, stores: Path) -> None:
    path = stores / f"{pack}-tar"
    wide = epoch(path, 0)[0]["tokens"]
    narrow = epoch(path, 0, dtype="stored")[0]["tokens"]
    values = (wide.values, narrow.values) if isinstance(wide, Ragged) else (wide, narrow)
    assert [one.dtype for one in values] == [torch.int64, torch.uint16]
    assert values[0].tolist() == values[1].tolist()
    renamed = epoch(path, 2, rename={"tokens": "input_ids"}, fields=("tokens",))[0]
    assert set(renamed) == {"input_ids", "id"}
    raw = epoch(path, 0, decode="bytes")[0]["tokens"]
    first = np.frombuffer(raw[0].numpy(), "<u2", offset=128 if pack == "none" else 0)
    assert first.tolist() == (values[1] if pack != "none" else narrow)[0].tolist()
    arrays = next(iter(StreamDataset(path, batch_size=7, decode="numpy")))["tokens"]
    assert pack == "none" or (isinstance(arrays, np.ndarray) and arrays.dtype == np.int64)
    with pytest.raises(UsageError, match="dtype is 'int8'"):
        StreamDataset(path, dtype="int8")  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"pad": True}, {"drop_last": True}])
def test_ranks_share_sequences(options: dict[str, Any], stores: Path) -> None:
    path = stores / "bestfit-tar"
    total = len(packer_reader.open(path))
    ranks = [epoch(path, 0, rank=rank, world_size=2, batch_size=4, **options) for rank in (0, 1)]
    assert len(ranks[0]) == len(ranks[1])
    valid = [batch.get("valid", torch.ones(len(batch["id"]), dtype=torch.bool)) for part in ranks for batch in part]
    seen = torch.cat([b["id"][mask] for b, mask in zip([*ranks[0], *ranks[1]], valid, strict=True)]).tolist()
    assert len(set(seen)) == len(seen) == (total if "pad" in options else total // 8 * 8)


def test_kept_batches_keep_their_tokens(stores: Path) -> None:
    """Small batches are found together, and each still has memory of its own."""
    for workers in (0, 2):
        kept = epoch(stores / "concat-tar", workers, batch_size=3)
        copies = [batch["tokens"].clone() for batch in kept]
        epoch(stores / "concat-tar", workers, batch_size=3, seed=4)
        assert all(torch.equal(batch["tokens"], copy) for batch, copy in zip(kept, copies, strict=True))


def test_transforms_see_whole_batches(stores: Path) -> None:
    for workers in (0, 2):
        ds = StreamDataset(stores / "concat-tar", batch_size=5, transform=_sums)
        total = sum(int(batch["sum"].sum()) for batch in DataLoader(ds, batch_size=None, num_workers=workers))
        assert total == sum(int(sample["tokens"].astype(int).sum()) for sample in packer_reader.open(ds.store.path))


def _sums(batch: dict[str, Any]) -> dict[str, Any]:
    return {"sum": batch["tokens"].sum(1)}


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=1, max_size=5), st.integers(0, 6))
def test_documents_and_positions_follow_from_boundaries(rows: list[list[int]], padding: int) -> None:
    length = max(map(sum, rows)) + padding
    bounds = [np.cumsum([0, *row]) for row in rows]
    offsets = np.cumsum([0, *map(len, bounds)])
    ragged = Ragged.of(np.concatenate(bounds).astype(np.int32), offsets)
    ids, places = document_ids(ragged, length), position_ids(ragged, length)
    for row, sizes in enumerate(rows):
        left = length - sum(sizes)
        assert ids[row].tolist() == [n for n, size in enumerate(sizes) for _ in range(size)] + [-1] * left
        assert places[row].tolist() == [place for size in sizes for place in range(size)] + [0] * left
    assert [one.tolist() for one in ragged.to_list()] == [one.tolist() for one in bounds]
    assert ragged.part(0, 1).to_list()[0].tolist() == bounds[0].tolist()


def test_lengths_shorter_than_the_sequences_are_refused() -> None:
    bounds = Ragged(torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([0, 3]))
    for made in (document_ids, position_ids):
        assert made(bounds, 5).shape == (1, 5)
        with pytest.raises(UsageError, match="a sequence has 5 tokens, and length is 4"):
            made(bounds, 4)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 million tokens: documents, and sequences of 2^14, of which a batch of 64 has 8.4 MB."""
    root = tmp_path_factory.mktemp("long")
    source = write(root / "d.jsonl", ["some words or other " * 1600] * 512)
    built(source, root / "documents")
    built(source, root / "sequences", tokenized(pack="concat", seq_len=1 << 14))
    return root


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(("pack", "options"), [("concat", ""), ("none", ""), ("none", "seq_len=16")])
def test_tokens_load_no_masked_arrays(pack: str, options: str, container: str, stores: Path) -> None:
    assert masked_arrays(stores / f"{pack}-{container}", options) == "[]"


@pytest.mark.parametrize(
    ("workers", "store", "kind"),
    [
        (0, "documents", "seq_len"),
        (2, "sequences", ""),
        (2, "sequences", "loader"),
        pytest.param(0, "sequences", "", marks=pytest.mark.slow),
        pytest.param(2, "documents", "seq_len", marks=pytest.mark.slow),
    ],
)
def test_loops_take_the_memory_that_they_say(workers: int, store: str, kind: str, long: Path, tmp_path: Path) -> None:
    took, said = measured(long / store, workers, 2, kind, tmp_path)
    assert abs(took - said) < 0.1 * said, (took, said)


@pytest.mark.parametrize("container", CONTAINERS)
def test_damage_is_named_not_read(container: str, tmp_path: Path) -> None:
    """Rows are read from raw memory: whatever an index says, nothing outside of its record is."""
    store = built(
        write(tmp_path / "d.jsonl", words(50)),
        tmp_path / "o",
        tokenized(pack="concat", seq_len=64),
        container=container,
    )
    index = store.index(0)
    for change in ({"size": 60}, {"offset": 1 << 40}):
        for name, value in change.items():
            column = np.array(getattr(index, name))
            column[0, 0] = value
            object.__setattr__(index, name, column)
        with pytest.raises(StoreError):
            list(_read_all(store))
        index = store._map_index(0)
        store._indexes._held[0] = index


def _read_all(store: Any) -> Any:
    from packer_reader.batch import BatchReader
    from packer_reader.view import View

    reader = BatchReader(store, View(), 0)
    yield reader.read(np.arange(len(store)), 0)
    yield gather_ragged(store, np.arange(len(store)), 1, "int32")


def test_lengths_that_cannot_be_are_refused(stores: Path) -> None:
    with pytest.raises(UsageError, match="seq_len is for stores of documents"):
        StreamDataset(stores / "concat-tar", seq_len=64)
    with pytest.raises(UsageError, match="seq_len is 0"):
        StreamDataset(stores / "none-tar", seq_len=0)
    with pytest.raises(UsageError, match='decode="bytes" gives stored fields'):
        next(iter(StreamDataset(stores / "none-tar", seq_len=64, decode="bytes", batch_size=2)))


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(("column", "change"), [("tokens", 1), ("tokens", 2), ("tokens", 1 << 31), ("token_end", 1)])
def test_columns_that_do_not_fit_the_tokens_are_damage(
    column: str, change: int, container: str, tmp_path: Path
) -> None:
    built(write(tmp_path / "d.jsonl", words(30)), tmp_path / "o", container=container)
    path = tmp_path / "o" / "columns" / f"{column}.col"
    data = bytearray(path.read_bytes())
    values = np.frombuffer(
        data, np.uint32 if column == "tokens" else np.uint64, 30, len(data) - 30 * (4 if column == "tokens" else 8)
    )
    values[7] ^= values.dtype.type(change)
    path.write_bytes(data)
    with pytest.raises(StoreError):
        list(StreamDataset(tmp_path / "o", batch_size=4, seq_len=64))


@pytest.mark.parametrize("container", CONTAINERS)
def test_an_iterator_may_cross_a_fork(container: str, stores: Path) -> None:
    iterator = iter(StreamDataset(stores / f"concat-{container}", batch_size=4, seed=2))
    next(iterator)
    child = os.fork()
    if child == 0:
        os._exit(7 if len(next(iterator)["tokens"]) == 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(next(iterator)["tokens"]) == 4


def test_no_more_is_held_than_a_batch(stores: Path) -> None:
    for options in ({}, {"seq_len": 64}):
        path = stores / ("none-tar" if options else "concat-tar")
        for batch in epoch(path, 0, batch_size=2, **options):
            assert batch["tokens"].untyped_storage().nbytes() == batch["tokens"].nbytes


def test_many_small_shards_need_few_descriptors(tmp_path: Path) -> None:
    source = write(tmp_path / "d.jsonl", words(600, mean=60))
    store = built(source, tmp_path / "o", tokenized(pack="concat", seq_len=2048), shard_bytes=10_000)
    assert store.manifest.shards > 60
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))\n"
        "from packer_reader import StreamDataset\n"
        f"print(sum(len(b['tokens']) for b in StreamDataset({str(tmp_path / 'o')!r}, batch_size=4)))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(done.stdout) == len(store)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_failed_does_not_come_again(workers: int, stores: Path) -> None:
    ds = StreamDataset(stores / "concat-tar", batch_size=16, transform=_fails_on_some, seed=1)
    iterator, came, failed = iter(DataLoader(ds, batch_size=None, num_workers=workers)), 0, 0
    while True:
        try:
            next(iterator)
            came += 1
        except StopIteration:
            break
        except ValueError:
            failed += 1
    assert failed > 0
    assert came + failed == len(ds)


def _fails_on_some(batch: dict[str, Any]) -> None:
    if int(batch["tokens"].sum()) % 2:
        raise ValueError("odd")


def test_ragged_values_may_be_copied_anywhere() -> None:
    small = Ragged(torch.ones(3, requires_grad=True), torch.tensor([0, 3]))
    assert torch.equal(copy.deepcopy(Ragged(torch.ones(3), torch.tensor([0, 3]))).values, small.values)
    assert len(pickle.loads(pickle.dumps(Ragged(torch.ones(3), torch.tensor([0, 3]))))) == 1
    meta = Ragged(torch.ones(3, device="meta"), torch.tensor([0, 3], device="meta"))
    assert copy.deepcopy(meta).values.device.type == "meta"
    with pytest.raises(IndexError):
        small[1]


def test_numbers_of_sequences_are_checked_like_those_of_samples(stores: Path) -> None:
    ds = MapDataset(stores / "none-tar", seq_len=64)
    for wrong, error in (("a", UsageError), (1.0, UsageError), (10**9, NotFoundError)):
        with pytest.raises(error):
            ds[wrong]  # type: ignore[index]


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("pack", PACKS)
def test_no_samples_are_no_error(pack: str, container: str, stores: Path) -> None:
    path = stores / f"{pack}-{container}"
    assert MapDataset(path).__getitems__([]) == []
    shares = [list(StreamDataset(path, rank=rank, world_size=70, with_id=True)) for rank in range(70)]
    assert min(map(len, shares)) < max(map(len, shares))
    assert sorted(sample["id"] for share in shares for sample in share) == list(range(len(packer_reader.open(path))))


@pytest.mark.parametrize("container", CONTAINERS)
def test_what_is_written_into_a_batch_reaches_no_other(container: str, stores: Path) -> None:
    ds = StreamDataset(stores / f"concat-{container}", batch_size=4, with_id=True)
    batches, seen = iter(ds), list[int]()
    for _ in range(3):
        batch = next(batches)
        seen += batch["id"].tolist()
        for name in ("id", "tokens", "n_valid"):
            batch[name] += 100_000
    child = os.fork()
    if child == 0:
        code = 1
        try:
            rest = [number for batch in batches for number in batch["id"].tolist()]
            code = 7 if sorted(seen + rest) == list(range(len(ds.store))) else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
