"""The header of `.npy` files, for arrays that are written in parts (specification, section 4)."""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np

__all__ = ["ARRAY_HEADER", "array_header"]

ARRAY_HEADER = 128
"""Bytes before the values of arrays of one or two dimensions."""


@lru_cache(maxsize=1024)
def array_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The header of an array in C order, as numpy writes it.

    Args:
        dtype: such as `<u2`.
        shape: one or two sides.

    Example:
        >>> np.load(io.BytesIO(array_header("<u2", (2,)) + bytes([1, 0, 2, 0]))).tolist()
        [1, 2]
    """
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    found = stream.getvalue()
    assert len(found) == ARRAY_HEADER
    return found
