"""Frames: round trips, exact bytes, and a refusal for each way in which one can be wrong."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from packer_reader.errors import FormatError
from packer_reader.format.columns import (
    COLUMN_MAGIC,
    DTYPES,
    INDEX_MAGIC,
    StringColumn,
    frame_bytes,
    join_strings,
    parse_frame,
)
from tests.strategies import names

arrays = st.dictionaries(
    st.text(min_size=1, max_size=10),
    st.sampled_from(sorted(DTYPES)).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=9))
    ),
    max_size=4,
)


@given(arrays, st.dictionaries(st.text(), st.integers() | st.text()))
def test_frames_come_back(held: dict[str, np.ndarray], meta: dict[str, object]) -> None:
    frame = parse_frame("x", COLUMN_MAGIC, frame_bytes(COLUMN_MAGIC, meta, held))
    assert frame.meta == meta
    assert list(frame.arrays) == list(held)
    for name, array in held.items():
        assert frame.arrays[name].tobytes() == array.tobytes()
        assert (frame.arrays[name].dtype.str, frame.arrays[name].shape) == (array.dtype.str, array.shape)
        assert not frame.arrays[name].flags.writeable


@given(arrays, st.data())
def test_a_cut_frame_is_refused(held: dict[str, np.ndarray], data: st.DataObject) -> None:
    frame = frame_bytes(COLUMN_MAGIC, {}, held)
    with pytest.raises(FormatError, match="^x: "):
        parse_frame("x", COLUMN_MAGIC, frame[: data.draw(st.integers(0, len(frame) - 1))])


def test_golden_frame() -> None:
    frame = frame_bytes(COLUMN_MAGIC, {"column": "label"}, {"values": np.array([1, 2], "<u2")})
    header = b'{"arrays":[["values","<u2",[2]]],"meta":{"column":"label"}}'
    start = b"PKCOLMN1" + struct.pack("<Q", len(header)) + header
    assert frame == start + bytes(-len(start) % 64) + b"\x01\x00\x02\x00"


def broken(header: object, tail: bytes = b"", *, magic: bytes = COLUMN_MAGIC, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    start = magic + struct.pack("<Q", len(text) if length is None else length) + text
    return start + bytes(-len(start) % 64) + tail


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        pytest.param(b"", "does not begin with PKCOLMN1", id="empty"),
        pytest.param(broken({}, magic=INDEX_MAGIC), "does not begin", id="another kind"),
        pytest.param(broken({}, length=2**63), "header length", id="header over the file"),
        pytest.param(broken(b" " * (2 << 20)), "header length", id="header over the limit"),
        pytest.param(broken(b"\xff{"), "not the JSON object", id="no JSON"),
        pytest.param(broken(b"[" * 100_000), "not the JSON object", id="deep JSON"),
        pytest.param(broken([]), "not the JSON object", id="no object"),
        pytest.param(broken({"arrays": [["a", "|O", [1]]], "meta": {}}), "dtype '|O'", id="objects"),
        pytest.param(broken({"arrays": [["a", ">u4", [1]]], "meta": {}}), "dtype '>u4'", id="big-endian"),
        pytest.param(broken({"arrays": [["a", "<u4", [-1]]], "meta": {}}), "shape", id="negative side"),
        pytest.param(broken({"arrays": [["a", "<u4", [1, 1, 1]]], "meta": {}}), "shape", id="three dimensions"),
        pytest.param(broken({"arrays": [["a", "<u4", [True]]], "meta": {}}), "shape", id="a boolean side"),
        pytest.param(broken({"arrays": [["a", "|u1", [1]], ["a", "|u1", [1]]], "meta": {}}), "twice", id="twice"),
        pytest.param(broken({"arrays": [["a", "|u1", [1]]], "meta": []}), "meta is no object", id="meta"),
        pytest.param(broken({"arrays": [["a", "<u8", [2**40, 2**40]]], "meta": {}}), "cut short", id="huge"),
        pytest.param(broken({"arrays": [["a", "|u1", [1]]], "meta": {}}, b"ab"), "its header says", id="too long"),
        pytest.param(broken({"arrays": [["a", "|u1", [2]]], "meta": {}}, b"a"), "cut short", id="too short"),
    ],
)
def test_each_fault_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem.replace("|", r"\|")):
        parse_frame("x.col", COLUMN_MAGIC, data)


@given(st.lists(names | st.just("bad\udcff"), max_size=8))
def test_strings_come_back(texts: list[str]) -> None:
    column = StringColumn(*join_strings(texts))
    assert list(column) == texts
    for text in texts:
        assert column.find(text) == texts.index(text)
    assert column.find("not there, surely, since it is longer than any of them") is None


def test_a_string_column_counts_like_a_list() -> None:
    column = StringColumn(*join_strings(["a", "bc"]))
    assert (len(column), column[-1]) == (2, "bc")
    with pytest.raises(IndexError):
        column[2]
