"""Names: no way out of a store's folder, and lines that stay lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_reader.format.names import (
    column_file,
    index_file,
    is_file_name,
    is_suffix,
    key_text,
    line_text,
    shard_file,
    tokenizer_file,
)


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a/../b", "a/b/c", ".hidden", "a/.b", "", "a//b", "a\\b", "x\n", "~", "a" * 300, 5, None]
)
def test_names_that_lead_elsewhere_are_refused(name: object) -> None:
    assert not is_file_name(name)


@pytest.mark.parametrize("name", ["manifest.json", "columns/label.col", "train-000000.tar", "_info.json"])
def test_names_of_stores_are_accepted(name: str) -> None:
    assert is_file_name(name)


@pytest.mark.parametrize("suffix", ["", "JPG", "a b", ".jpg", "jpg.", "a.b.c.d", "é", "jpg\n", 3])
def test_suffixes_that_readers_would_split_are_refused(suffix: object) -> None:
    assert not is_suffix(suffix)


@given(st.text(max_size=30))
def test_a_line_stays_one_line(text: str) -> None:
    assert len(line_text(text).splitlines()) <= 1


@given(st.text(st.characters(max_codepoint=127), max_size=30))
def test_an_escaped_name_can_be_read_back(text: str) -> None:
    assert line_text(text).encode().decode("unicode_escape") == text


def test_names_follow_from_numbers() -> None:
    assert column_file("label") == "columns/label.col"
    assert [tokenizer_file(kind) for kind in ("tokenizers", "sentencepiece")] == ["tokenizer.json", "tokenizer.model"]
    assert key_text(42) == "0000000000000042"
    assert shard_file("train", 7) == "train-000007.tar"
    assert index_file("train", 1_234_567) == "train-1234567.index"
