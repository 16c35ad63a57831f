"""Indexes: round trips and refusals."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest

from packer_reader.errors import FormatError
from packer_reader.format.digest import ContentDigest
from packer_reader.format.index import Index, index_bytes, parse_index

SUFFIXES = ("jpg", "cls")
INDEX = Index(
    SUFFIXES,
    np.array([3, 5], "<u8"),
    np.array([[512, 2048], [1536, 3072]], "<u8"),
    np.array([[500, 400], [1, 1]], "<u4"),
    np.array([[1, 2], [3, 4]], "<u4"),
)


def test_indexes_come_back() -> None:
    found = parse_index("x", index_bytes(INDEX), SUFFIXES, samples=2, container=5000)
    for name in ("key", "offset", "size", "crc"):
        assert getattr(found, name).tolist() == getattr(INDEX, name).tolist()
    assert len(found) == 2
    assert found.value is None


def test_lmdb_indexes_name_values() -> None:
    index = replace(INDEX, value=np.array([3, 3], "<u8"))
    found = parse_index("x", index_bytes(index), SUFFIXES, samples=2, container=None)
    assert found.value is not None
    assert found.value.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("changes", "samples", "container", "problem"),
    [
        pytest.param({}, 3, 5000, "array 'key' should be <u8 \\(3,\\)", id="other count"),
        pytest.param({"suffixes": ("png", "cls")}, 2, 5000, "about fields", id="other fields"),
        pytest.param({}, 2, 3000, "outside the shard's 3000 bytes", id="behind the end"),
        pytest.param({"offset": INDEX.offset + np.uint64(2**64 - 600)}, 2, 5000, "outside", id="wrapping around"),
        pytest.param({"crc": INDEX.crc.astype("<u8")}, 2, 5000, "array 'crc' should be <u4", id="wrong dtype"),
        pytest.param({}, 2, None, "array 'value' should be .* found nothing", id="no values"),
    ],
)
def test_each_fault_is_refused(changes: dict[str, object], samples: int, container: int | None, problem: str) -> None:
    data = index_bytes(replace(INDEX, **changes))  # type: ignore[arg-type]
    with pytest.raises(FormatError, match=problem):
        parse_index("x", data, SUFFIXES, samples=samples, container=container)


def test_content_digest_is_golden_and_independent_of_cuts() -> None:
    whole, parts = ContentDigest(SUFFIXES), ContentDigest(SUFFIXES)
    whole.add(INDEX)
    for row in (slice(0, 1), slice(1, 2), slice(2, 2)):
        parts.add(Index(SUFFIXES, INDEX.key[row], INDEX.offset[:, row], INDEX.size[:, row], INDEX.crc[:, row]))
    assert whole.hexdigest() == parts.hexdigest()
    rows = struct.pack("<QQIQI", 3, 500, 1, 1, 3) + struct.pack("<QQIQI", 5, 400, 2, 1, 4)
    part = struct.pack("<Q", 0) + hashlib.sha256(rows).digest()
    assert whole.hexdigest() == hashlib.sha256(b'["jpg","cls"]' + part).hexdigest()


def test_content_digest_sees_every_column() -> None:
    digests = set()
    far = INDEX.key + np.uint64(1 << 16)
    for changed in (
        INDEX,
        replace(INDEX, key=far),
        replace(INDEX, size=INDEX.size + 1),
        replace(INDEX, crc=INDEX.crc + 1),
    ):
        digest = ContentDigest(SUFFIXES)
        digest.add(changed)
        digests.add(digest.hexdigest())
    other = ContentDigest(("png", "cls"))
    other.add(INDEX)
    assert len(digests | {other.hexdigest()}) == 5
