"""Tar framing: exact bytes, the same as the standard library writes and reads."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_reader.format.tar import BLOCK, END, MAX_MEMBER, member_header, member_name, member_size


@given(st.integers(0, 10**16 - 1), st.sampled_from(["jpg", "mask.png", "cls"]), st.integers(0, MAX_MEMBER))
def test_headers_equal_those_of_tarfile(key: int, suffix: str, size: int) -> None:
    member = tarfile.TarInfo(member_name(key, suffix))
    member.size = size
    assert member_header(member.name, size) == member.tobuf(tarfile.USTAR_FORMAT)


@given(st.lists(st.binary(max_size=1500), max_size=5))
def test_tarfile_reads_what_is_framed(blobs: list[bytes]) -> None:
    parts = [member_header(member_name(k, "msg"), len(b)) + b + bytes(-len(b) % BLOCK) for k, b in enumerate(blobs)]
    assert [len(part) for part in parts] == [member_size(len(b)) for b in blobs]
    with tarfile.open(fileobj=io.BytesIO(b"".join(parts) + END)) as archive:
        found = [(m.name, archive.extractfile(m).read()) for m in archive]  # type: ignore[union-attr]
    assert found == [(member_name(k, "msg"), b) for k, b in enumerate(blobs)]


def test_a_name_over_99_characters_does_not_fit() -> None:
    with pytest.raises(UnicodeEncodeError):
        member_header("é.jpg", 1)
