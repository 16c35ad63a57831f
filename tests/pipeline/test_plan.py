"""The stored order: each ref once, the same whoever computes it; golden so that stores never move."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from packer.plan import Plan
from tests.strategies import seeds


@given(st.integers(0, 500), seeds, st.integers(1, 70), st.booleans())
def test_each_ref_has_one_key(count: int, seed: int, unit: int, shuffle: bool) -> None:
    plan = Plan(count, seed, unit, shuffle)
    refs = [ref for number in range(plan.units) for ref in plan.refs(number).tolist()]
    keys = [key for number in range(plan.units) for key in plan.keys(number).tolist()]
    assert sorted(refs) == keys == list(range(count))


@given(st.integers(1, 500), seeds, st.integers(1, 70), st.integers(1, 70))
def test_the_order_does_not_depend_on_units(count: int, seed: int, one: int, other: int) -> None:
    orders = [
        [ref for number in range(plan.units) for ref in plan.refs(number).tolist()]
        for plan in (Plan(count, seed, one), Plan(count, seed, other))
    ]
    assert orders[0] == orders[1]


@given(st.integers(1, 500), seeds, st.integers(1, 70), st.booleans())
def test_a_refs_key_is_found_without_the_others(count: int, seed: int, unit: int, shuffle: bool) -> None:
    plan = Plan(count, seed, unit, shuffle)
    for number in range(plan.units):
        assert plan.places(plan.refs(number)).tolist() == plan.keys(number).tolist()


def test_golden_order() -> None:
    assert Plan(10, 0, 256).refs(0).tolist() == [4, 0, 6, 9, 1, 7, 8, 2, 5, 3]


def test_without_shuffling_it_is_the_sources() -> None:
    assert Plan(5, 9, 2, shuffle=False).refs(1).tolist() == [2, 3]
