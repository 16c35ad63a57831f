"""Hypothesis strategies for stores, orders, records and names."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from packer_reader.order import OrderSpec

sizes = st.lists(st.integers(0, 23), min_size=1, max_size=8).filter(lambda s: sum(s) > 0)
seeds = st.integers(0, 2**64 - 1)
names = st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=30)
suffixes = st.lists(st.from_regex(r"[a-z]{1,8}\.(jpg|png|npy)", fullmatch=True), min_size=1, max_size=4, unique=True)


@st.composite
def order_specs(draw: st.DrawFn, *, lanes: int | None = None, shuffled: bool | None = None) -> OrderSpec:
    """Orders over small, uneven stores."""
    counts = np.array(draw(sizes))
    return OrderSpec(
        counts,
        draw(seeds),
        draw(st.integers(1, 1000) | st.integers(1, 20)),
        draw(st.integers(1, 100) | st.integers(1, 6)),
        draw(st.integers(1, min(8, int(counts.sum())))) if lanes is None else lanes,
        draw(st.booleans()) if shuffled is None else shuffled,
        draw(st.integers(1, 30)),
    )
