"""LMDB values: what msgpack reads, offsets that point at the bytes, and refusals."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_reader.errors import FormatError
from packer_reader.format.record import key_bytes, pack_samples, parse_value, sample_parts
from tests.strategies import suffixes


@st.composite
def samples(draw: st.DrawFn) -> tuple[list[str], list[bytes]]:
    chosen = draw(suffixes)
    sizes = st.sampled_from([0, 1, 255, 256, 65535, 65536])
    return chosen, [bytes(draw(sizes)) + draw(st.binary(max_size=5)) for _ in chosen]


def encoded(suffixes: list[str], blobs: list[bytes]) -> tuple[bytes, list[int]]:
    parts, offsets = sample_parts(suffixes, blobs)
    return b"".join(parts), offsets


@given(samples())
def test_any_msgpack_library_reads_a_sample(sample: tuple[list[str], list[bytes]]) -> None:
    value, offsets = encoded(*sample)
    expected = dict(zip(*sample, strict=True))
    assert msgpack.unpackb(value) == expected
    assert parse_value(3, value) == {3: expected}
    for offset, blob in zip(offsets, sample[1], strict=True):
        assert value[offset : offset + len(blob)] == blob


@given(st.lists(samples(), min_size=1, max_size=4))
def test_shared_values_hold_each_sample_at_its_offset(held: list[tuple[list[str], list[bytes]]]) -> None:
    maps = [encoded(*sample)[0] for sample in held]
    keys = [7 * place for place in range(len(held))]
    value, starts = pack_samples(keys, maps)
    assert parse_value(0, value) == {k: dict(zip(*s, strict=True)) for k, s in zip(keys, held, strict=True)}
    for start, one in zip(starts, maps, strict=True):
        assert value[start : start + len(one)] == one


def test_golden_values() -> None:
    value, offsets = encoded(["jpg", "cls"], [b"ab", b"7"])
    assert value == b"\x82\xa3jpg\xc4\x02ab\xa3cls\xc4\x017"
    assert offsets == [7, 15]
    assert pack_samples([5], [value])[0] == b"\xdd\0\0\0\x01\x92\xcf\0\0\0\0\0\0\0\x05" + value
    assert key_bytes(258) == b"\0\0\0\0\0\0\x01\x02"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param(b"\xc1", "is not msgpack", id="reserved byte"),
        pytest.param(b"\xdd\xff\xff\xff\xff", "is not msgpack", id="huge array"),
        pytest.param(b"\x82\xa3jpg", "is not msgpack", id="cut"),
        pytest.param(msgpack.packb(5), "neither a map nor an array", id="a number"),
        pytest.param(msgpack.packb([1, 2]), "neither a map nor an array", id="an array of numbers"),
        pytest.param(msgpack.packb({"jpg": 5}), "other than bytes by suffix", id="no bytes"),
    ],
)
def test_each_fault_is_refused(value: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        parse_value(1, value)
