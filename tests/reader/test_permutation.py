"""Golden values: the order of every store and epoch rests on them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packer_reader.permutation import GOLDEN, key, mix, scatter, shuffle
from tests.strategies import seeds


def test_mix_is_splitmix64() -> None:
    states = np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * np.uint64(GOLDEN)
    assert mix(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_key_has_its_golden_values() -> None:
    assert key(0) == 0xE220A8397B1DCDAF
    assert key(1, 2, 3) == 0xD0734750FDE362B3
    assert key(3, 2, 1) == 0xD62A7F6E291FEF64


def test_shuffle_has_its_golden_values() -> None:
    assert shuffle(10, key(9)).tolist() == [7, 1, 2, 3, 8, 9, 6, 4, 0, 5]
    assert shuffle(2, key(9)).tolist() == [1, 0]


def test_scatter_has_its_golden_values() -> None:
    assert scatter(np.arange(10), 10, key(9)).tolist() == [8, 1, 4, 5, 7, 9, 0, 2, 6, 3]
    assert scatter(np.arange(5), 10**7, key(9)).tolist() == [4136400, 523009, 3180858, 3262073, 1331182]


@given(st.integers(0, 300), seeds)
def test_shuffle_is_a_permutation(size: int, seed: int) -> None:
    assert sorted(shuffle(size, seed).tolist()) == list(range(size))


@given(st.integers(1, 300), seeds)
def test_scatter_is_a_permutation_with_an_inverse(size: int, seed: int) -> None:
    places = np.arange(size)
    there = scatter(places, size, seed)
    assert sorted(there.tolist()) == places.tolist()
    assert scatter(there, size, seed, inverse=True).tolist() == places.tolist()
