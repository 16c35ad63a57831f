"""The epoch order's promises, and golden orders that may never move."""

from __future__ import annotations

import hashlib
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_reader.batches import Batches, Tail
from packer_reader.order import EpochOrder, OrderSpec
from packer_reader.shuffle import default_block
from tests.strategies import order_specs


def spec(sizes: list[int], seed: int, window: int, block: int, lanes: int = 1) -> OrderSpec:
    return OrderSpec(np.array(sizes), seed, window, block, lanes)


def all_ids(batches: Batches) -> list[int]:
    return [i for number in range(len(batches)) for i in batches.batch(number)[0].tolist()]


@given(order_specs(), st.integers(0, 3))
def test_each_sample_comes_once_per_epoch(order: OrderSpec, epoch: int) -> None:
    ids = all_ids(Batches(order, epoch, 3 * order.lanes))
    assert sorted(ids) == list(range(order.total))


@given(order_specs(), st.integers(1, 5), st.integers(1, 4), st.sampled_from(["keep", "drop", "pad"]))
def test_ranks_together_read_the_global_batches(order: OrderSpec, world: int, per_lane: int, tail: Tail) -> None:
    size = per_lane * order.lanes
    whole = Batches(order, 1, size, tail)
    ranks = [Batches(order, 1, size, tail, rank=rank, world_size=world) for rank in range(world)]
    assert {len(rank) for rank in ranks} == {len(whole)}
    for number in range(len(whole)):
        parts = [rank.batch(number)[0].tolist() for rank in ranks]
        assert sum(parts, []) == whole.batch(number)[0].tolist()
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(order_specs(), st.integers(1, 7), st.data())
def test_any_position_is_computed_without_the_ones_before(order: OrderSpec, size: int, data: st.DataObject) -> None:
    lane = data.draw(st.integers(0, order.lanes - 1))
    whole = EpochOrder(order, 2, lane)
    expected = whole.ids(0, whole.size).tolist()
    start = data.draw(st.integers(0, whole.size))
    stop = min(whole.size, start + size)
    assert EpochOrder(order, 2, lane).ids(start, stop).tolist() == expected[start:stop]


@given(order_specs(lanes=1), st.integers(1, 5), st.integers(1, 7), st.data())
def test_resume_goes_on_with_any_batch_size(order: OrderSpec, before: int, after: int, data: st.DataObject) -> None:
    first = Batches(order, 0, before)
    taken = data.draw(st.integers(0, len(first)))
    done = [i for number in range(taken) for i in first.batch(number)[0].tolist()]
    rest = all_ids(Batches(order, 0, after, start=len(done)))
    assert done + rest == all_ids(first)


@given(order_specs(), st.integers(1, 5))
def test_padding_repeats_each_lanes_beginning(order: OrderSpec, per_lane: int) -> None:
    batches = Batches(order, 0, per_lane * order.lanes, "pad")
    real = []
    for number in range(len(batches)):
        ids, valid = batches.batch(number)
        assert len(ids) == batches.global_batch
        real += ids[valid].tolist()
    assert sorted(real) == list(range(order.total))


@given(order_specs(), st.integers(1, 5))
def test_drop_leaves_out_less_than_a_batch(order: OrderSpec, per_lane: int) -> None:
    batches = Batches(order, 0, per_lane * order.lanes, "drop")
    ids = all_ids(batches)
    assert len(set(ids)) == len(ids) == order.total // batches.global_batch * batches.global_batch


@given(order_specs(lanes=1, shuffled=True))
def test_window_bounds_what_is_held(order: OrderSpec) -> None:
    epoch = EpochOrder(order, 0)
    base = {sample: place for place, sample in enumerate(epoch._base(0, epoch.size).tolist())}
    if order.window >= epoch.size:
        return
    cell = epoch.size // epoch._cells
    for place, sample in enumerate(epoch.ids(0, epoch.size).tolist()):
        moved = (place - base[sample] + cell + 1) % epoch.size
        assert moved <= (epoch._spread + 1) * (cell + 1)


@pytest.mark.parametrize(("start", "last"), [(0, 1), (2, 2), (9, 1), (10, 0), (12, 0)])
def test_the_last_batch_is_known_before(start: int, last: int) -> None:
    batches = Batches(spec([4, 6], 0, 5, 2), 0, 3, start=start)
    assert batches.last_size() == last
    assert (len(batches) == 0) == (last == 0)


def test_epochs_and_seeds_differ() -> None:
    orders = [
        EpochOrder(spec([50, 50], seed, 20, 4), epoch).ids(0, 100).tolist() for seed in (0, 1) for epoch in (0, 1)
    ]
    assert len({tuple(order) for order in orders}) == 4


def test_stored_order_without_shuffling() -> None:
    order = OrderSpec(np.array([3, 0, 4]), 5, 1, 1, shuffled=False)
    assert EpochOrder(order, 9).ids(0, 7).tolist() == list(range(7))


@pytest.mark.parametrize(
    ("window", "epoch", "ids"),
    [
        (4, 0, [5, 6, 2, 3, 7, 10, 11, 8, 9, 0, 1, 4]),
        (4, 1, [8, 9, 2, 3, 5, 6, 0, 1, 10, 11, 7, 4]),
        (12, 0, [3, 8, 9, 5, 1, 0, 10, 11, 7, 6, 4, 2]),
    ],
)
def test_golden_orders(window: int, epoch: int, ids: list[int]) -> None:
    assert EpochOrder(spec([5, 3, 4], 7, window, 2), epoch).ids(0, 12).tolist() == ids


def test_golden_lanes() -> None:
    order = spec([5, 3, 4], 7, 4, 2, 2)
    assert [[a.tolist() for a in order.pieces(lane)] for lane in (0, 1)] == [[[0, 5], [5, 1]], [[6, 8], [2, 4]]]
    assert all_ids(Batches(order, 0, 4)) == [3, 4, 11, 8, 5, 0, 9, 6, 1, 2, 7, 10]


@pytest.mark.parametrize(("tail", "last"), [("keep", [[5], []]), ("pad", [[5, 6], [0, 1]])])
def test_golden_ranks(tail: Tail, last: list[list[int]]) -> None:
    ranks = [Batches(spec([5, 3, 5], 7, 4, 2), 0, 4, tail, rank=rank, world_size=2) for rank in (0, 1)]
    assert [rank.batch(0)[0].tolist() for rank in ranks] == [[6, 0], [1, 8]]
    assert [rank.batch(3)[0].tolist() for rank in ranks] == last


@pytest.mark.parametrize(
    ("block", "window", "lanes", "digest"),
    [
        (64, 500, 1, "67c2e6123c772912df7e508ab4f31ff8d4e26915275fd59f4580bf6cf4d5aaeb"),
        (64, 500, 4, "ca6372b352df4e0e3952546459f43ba6e4812322fb2524f64aaf929d97841a38"),
        (1000, 3000, 1, "8d4a880613166813c9522bb83828ae7c5cab284a68dd0db5ba57ff454bbea095"),
    ],
)
def test_golden_digests(block: int, window: int, lanes: int, digest: str) -> None:
    ids = np.array(all_ids(Batches(spec([1000] * 7 + [123], 1, window, block, lanes), 2, 32)), "<i8")
    assert hashlib.sha256(ids.tobytes()).hexdigest() == digest


def test_a_billion_samples_cost_a_window() -> None:
    tracemalloc.start()
    batches = Batches(OrderSpec(np.full(100_000, 10_000), 0, 10_000, 100), 3, 256)
    ids = batches.batch(3_000_000)[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ids[:6].tolist() == [351023111, 132551429, 542478950, 559167989, 316748313, 813659292]
    assert peak < 30e6


@pytest.mark.parametrize(
    ("total", "batch", "world", "tail", "sizes"),
    [
        (1, 4, 2, "keep", [[1], [0]]),
        (1, 4, 2, "drop", [[], []]),
        (1, 4, 2, "pad", [[2], [2]]),
        (10, 4, 2, "keep", [[2, 2, 1], [2, 2, 1]]),
        (9, 4, 4, "keep", [[1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 1, 0]]),
        (3, 8, 4, "pad", [[2], [2], [2], [2]]),
        (10, 4, 3, "keep", [[2, 2, 1], [1, 1, 1], [1, 1, 0]]),
    ],
)
def test_tails(total: int, batch: int, world: int, tail: Tail, sizes: list[list[int]]) -> None:
    ranks = [Batches(spec([total], 0, 5, 2), 0, batch, tail, rank=r, world_size=world) for r in range(world)]
    assert [[len(rank.batch(n)[0]) for n in range(len(rank))] for rank in ranks] == sizes


@pytest.mark.parametrize(
    ("mean", "window", "largest", "shuffled", "block"),
    [
        (21_000, 12_800, 3_200, True, 400),
        (21_000, 12_800, 3_200, False, 50),
        (10**8, 2, 5, True, 1),
    ],
)
def test_default_blocks(mean: int, window: int, largest: int, block: int, *, shuffled: bool) -> None:
    assert default_block(mean, window, largest, shuffled=shuffled) == block


@given(order=order_specs(), size=st.integers(1, 40), data=st.data())
def test_what_a_batch_needs_was_announced_before(order: OrderSpec, size: int, data: st.DataObject) -> None:
    size *= order.lanes
    start = data.draw(st.integers(0, order.total // order.lanes)) * order.lanes
    batches = Batches(order, 3, size, "keep", start)
    announced = set[int]()
    for number in range(len(batches)):
        ids = batches.batch(number)[0].tolist()
        near = batches.arriving(number)
        assert all((np.diff(each) > 0).all() for each in near)
        announced.update(i for each in near for i in each.tolist())
        assert announced >= set(ids)


@given(order_specs(), st.integers(1, 40), st.sampled_from(["keep", "drop", "pad"]), st.integers(1, 3))
def test_batches_found_together_are_those_found_one_by_one(order: OrderSpec, size: int, tail: Tail, world: int) -> None:
    for rank in range(world):
        one, other = (
            Batches(order, 1, size * order.lanes * world, tail, rank=rank, world_size=world) for _ in range(2)
        )
        together = one.several(0, len(one)) if len(one) else []
        assert len(together) == len(other)
        for number, (ids, valid) in enumerate(together):
            wanted = other.batch(number)
            assert ids.tolist() == wanted[0].tolist()
            assert valid.tolist() == wanted[1].tolist()
