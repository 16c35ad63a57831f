"""The header of arrays that are written in parts is numpy's own."""

from __future__ import annotations

import io

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packer_reader.format.array import ARRAY_HEADER, array_header


@given(st.sampled_from(["<u2", "<u4", "<i4", "<i8"]), st.lists(st.integers(0, 9), min_size=1, max_size=2))
def test_numpy_reads_what_stands_behind_the_header(dtype: str, sides: list[int]) -> None:
    values = np.arange(np.prod(sides), dtype=dtype).reshape(sides)
    data = array_header(dtype, tuple(sides)) + values.tobytes()
    assert np.array_equal(np.load(io.BytesIO(data)), values)
    assert len(data) == ARRAY_HEADER + values.nbytes
    saved = io.BytesIO()
    np.save(saved, values)
    assert saved.getvalue() == data
