"""Cutting shards: nothing over the limit, nothing lost, every shard but the last full."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packer.sinks.cut import Cutter, ShardPlan

units = st.lists(st.lists(st.integers(1, 120), max_size=6), max_size=12)


def cut(lengths: list[list[int]], capacity: int) -> tuple[list[ShardPlan], Cutter]:
    cutter = Cutter(capacity)
    plans = [plan for unit, sizes in enumerate(lengths) for plan in cutter.feed(unit, np.array(sizes, int))]
    return plans + cutter.close(), cutter


@given(units, st.integers(1, 300))
def test_shards_are_full_and_complete(lengths: list[list[int]], capacity: int) -> None:
    plans, cutter = cut(lengths, capacity)
    rows = [(run.unit, row) for plan in plans for run in plan.runs for row in range(run.first, run.stop)]
    assert rows == [(unit, row) for unit, sizes in enumerate(lengths) for row in range(len(sizes))]
    assert [plan.number for plan in plans] == list(range(len(plans)))
    shards = [[lengths[run.unit][row] for run in plan.runs for row in range(run.first, run.stop)] for plan in plans]
    assert all(shards)
    assert all(sum(shard) <= capacity or len(shard) == 1 for shard in shards)
    assert all(sum(one) + other[0] > capacity for one, other in itertools.pairwise(shards))
    assert cutter.oversized == sum(sum(shard) > capacity for shard in shards)


def test_an_exact_fit_leaves_no_empty_shard() -> None:
    plans, _ = cut([[50, 50], [50, 50]], 100)
    assert [plan.samples for plan in plans] == [2, 2]
