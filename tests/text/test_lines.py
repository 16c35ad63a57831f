"""Promises about lines and paragraphs: where they begin and end does not depend on how a file is read."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from packer.sources.lines import spans_of


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.sampled_from([b"", b"\n", b"\n\n", b"a", b" ", b"\r", b"x" * 70, b" " * 90, b"\t\n", b"b c"]), max_size=30
    ),
    st.sampled_from(["line", "blank"]),
    st.integers(1, 9),
)
def test_documents_do_not_depend_on_how_a_file_is_read(parts: list[bytes], separator: Any, step: int) -> None:
    data = b"".join(parts)
    chunks = [data[start : start + step] for start in range(0, len(data), step)]
    found = [
        (line, data[start : start + size])
        for spans in spans_of(chunks, separator)
        for start, size, line in zip(spans.starts.tolist(), spans.sizes.tolist(), spans.lines.tolist(), strict=True)
    ]
    lines = list(enumerate(data.split(b"\n"), 1))
    if separator == "line":
        assert found == [(number, line) for number, line in lines if line.strip()]
        return
    wanted: list[tuple[int, bytes]] = []
    before = True
    for number, line in lines:
        if line.strip():
            wanted = (
                [*wanted, (number, line)] if before else [*wanted[:-1], (wanted[-1][0], wanted[-1][1] + b"\n" + line)]
            )
        before = not line.strip()
    assert found == wanted
