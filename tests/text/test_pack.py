"""Promises of the pure half of packing: every token once, no document cut that fits, windows by the source alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer import tokenized
from packer.recipe import Recipe
from packer.tokens.pack import bestfit, concat
from packer.tokens.window import of_text, with_unit
from packer_reader.errors import UsageError

LENGTHS = st.lists(st.integers(1, 100), max_size=60)


@settings(deadline=None, max_examples=300)
@given(LENGTHS, st.integers(1, 40))
def test_concat_is_the_documents_end_to_end(lengths: list[int], seq_len: int) -> None:
    rows = concat(lengths, seq_len)
    flat = [(place, token) for row in rows for place, start, stop in row for token in range(start, stop)]
    assert flat == [(place, token) for place, length in enumerate(lengths) for token in range(length)]
    sizes = [sum(stop - start for _, start, stop in row) for row in rows]
    assert all(size == seq_len for size in sizes[:-1])
    assert not sizes or 0 < sizes[-1] <= seq_len


@settings(deadline=None, max_examples=300)
@given(LENGTHS, st.integers(1, 40), st.integers(0, 9))
def test_bestfit_cuts_nothing_that_fits(lengths: list[int], seq_len: int, seed: int) -> None:
    rows = bestfit(lengths, seq_len, seed, 3)
    pieces = sorted(piece for row in rows for piece in row)
    for place, length in enumerate(lengths):
        own = [(start, stop) for found, start, stop in pieces if found == place]
        assert own == [(start, min(length, start + seq_len)) for start in range(0, length, seq_len)]
    assert all(0 < sum(stop - start for _, start, stop in row) <= seq_len for row in rows)
    # First-fit would not open a sequence while another has room: at most one is half empty.
    half = [row for row in rows if sum(stop - start for _, start, stop in row) * 2 <= seq_len]
    assert len(half) <= 1
    assert rows == bestfit(lengths, seq_len, seed, 3)


def test_bestfit_pads_little() -> None:
    lengths = np.random.default_rng(0).lognormal(6.3, 1, 4000).astype(int) + 1
    rows = bestfit(lengths.tolist(), 2048, 0, 0)
    assert 1 - lengths.sum() / (2048 * len(rows)) < 0.005


@settings(deadline=None)
@given(st.integers(0, 10**15), st.integers(0, 10**9), st.sampled_from([None, 32, 2048, 1 << 20]))
def test_a_unit_is_a_window_that_the_source_alone_decides(size: int, documents: int, seq_len: int | None) -> None:
    pack: Any = "none" if seq_len is None else "bestfit"
    recipe = Recipe(text=tokenized(pack=pack, seq_len=seq_len))
    unit = with_unit(recipe, size, documents).unit
    assert 1 <= unit <= 1 << 15
    if documents:
        assert (unit - 1) * (size // documents) <= 128 << 20


def test_a_recipe_of_pictures_has_no_window() -> None:
    assert with_unit(Recipe(), 10**9, 10**6) == Recipe()
    text = tokenized()
    assert of_text([Recipe(seed=3)], text) == Recipe(seed=3, text=text)
    with pytest.raises(UsageError, match="--gray is about pictures"):
        of_text([Recipe(gray=True)], text)
