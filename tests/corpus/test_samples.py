"""Each check of a sample accepts what a case says of it, and refuses anything else."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from tests.corpus.reports import SAMPLE_CHECKS
from tests.corpus.samples import Sample

COLOURS = np.array([[[220, 40, 40], [40, 180, 60]], [[50, 60, 210], [235, 215, 60]]], np.uint8)
QUAD = COLOURS.reshape(4, 3).tolist()
SAMPLE = Sample(
    {
        "image": COLOURS.repeat(24, 0).repeat(32, 1),
        "mask": np.array([[0, 300], [1000, 65535]], np.uint16).repeat(8, 0).repeat(8, 1),
        "label": 1,
        "text": "one\n",
        "meta": {"id": 2**53 + 1, "x": None, "code": "007", "f": float("nan")},
    },
    suffixes=("jpg", "json"),
    classes=("a", "007"),
)
FLAT = Sample({"image": np.broadcast_to(np.array([1, 1, 77], np.uint8), (32, 32, 3))})
GRAY = Sample({"image": np.full((48, 64, 1), 2000, np.uint16)})
CASES: list[tuple[str, Sample, Any, Any]] = [
    ("shape", SAMPLE, [48, 64, 3], [64, 48, 3]),
    ("dtype", SAMPLE, "uint8", "uint16"),
    ("dtype", GRAY, "uint16", "uint8"),
    ("quad", SAMPLE, [*QUAD[:3], None], [*QUAD[:3], QUAD[0]]),
    ("quad", SAMPLE, QUAD, QUAD[::-1]),
    ("quad", GRAY, [2000] * 4, [[2000] * 3] * 4),
    ("quad", GRAY, [2000] * 4, [2000, 2000, 2000, 2013]),
    ("quad_any", SAMPLE, [QUAD[::-1], QUAD], [QUAD[::-1]]),
    ("mean", FLAT, [1, 1, 77], [1, 1, 90]),
    ("serial", FLAT, 257, 258),
    ("serial_corner", FLAT, 257, 1),
    ("exact", SAMPLE, [[[0, 0, 0], 220], [[47, 63, 2], 60]], [[[0, 0, 0], 221]]),
    ("exact", GRAY, [[[47, 63], 2000]], [[[47, 63], 2001]]),
    ("label", SAMPLE, 1, 2),
    ("label", SAMPLE, 1, 1.0),
    ("label", SAMPLE, "007", "a"),
    ("label", FLAT, None, 0),
    ("text", SAMPLE, "one\n", "one"),
    ("text_any", SAMPLE, ["one\r\n", "one\n"], ["one"]),
    ("length", SAMPLE, 4, 3),
    ("sha256", SAMPLE, hashlib.sha256(b"one\n").hexdigest(), hashlib.sha256(b"").hexdigest()),
    ("fields", SAMPLE, ["jpg", "json"], ["jpg", "txt"]),
    ("values", SAMPLE, {"id": 2**53 + 1, "x": None}, {"id": 2**53}),
    ("values", SAMPLE, {"code": "007", "f": "nan"}, {"code": 7}),
    ("values", SAMPLE, {"x": None}, {"nothing": None}),
    ("values", SAMPLE, {"x": None}, {"x": 0}),
    ("mask_shape", SAMPLE, [16, 16], [16, 8]),
    ("mask_dtype", SAMPLE, "uint16", "uint8"),
    ("mask_quad", SAMPLE, [0, 300, 1000, 65535], [0, 300, 1000, 65534]),
    ("mask_values", SAMPLE, [0, 300, 1000, 65535], [0, 300, 1000]),
    ("mask_values_any", SAMPLE, [[0, 1], [0, 300, 1000, 65535]], [[0, 1], [0, 255]]),
    ("mask_subset", SAMPLE, [0, 1, 300, 1000, 65535], [0, 300, 1000]),
]


@pytest.mark.parametrize(("key", "sample", "right", "wrong"), CASES)
def test_right_is_told_from_wrong(key: str, sample: Sample, right: Any, wrong: Any) -> None:
    assert SAMPLE_CHECKS[key](right, {}, sample)
    assert not SAMPLE_CHECKS[key](wrong, {}, sample)


@pytest.mark.parametrize(
    ("key", "tolerance", "want"),
    [("quad", "quad_tol", [[1, 1, 80]] * 4), ("mean", "mean_tol", [1, 1, 80]), ("serial", "serial_tol", 260)],
)
def test_tolerances_are_kept(key: str, tolerance: str, want: Any) -> None:
    assert SAMPLE_CHECKS[key](want, {tolerance: 3}, FLAT)
    assert not SAMPLE_CHECKS[key](want, {tolerance: 2}, FLAT)


def test_every_check_is_tested() -> None:
    assert {key for key, *_ in CASES} == SAMPLE_CHECKS.keys()
