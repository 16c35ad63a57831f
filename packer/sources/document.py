"""From the bytes of a text, or of a line of JSON, to a document."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from packer_reader.errors import SampleError

if TYPE_CHECKING:
    from packer.text import Text

__all__ = ["checked_text", "keys_of", "line_of_text", "text_of"]


def text_of(data: bytes, text: Text) -> str:
    """A document from its bytes.

    Raises:
        SampleError: it is no Unicode, or blank.
    """
    try:
        found = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", text.errors)
    except UnicodeError:
        raise SampleError("unsupported", "it is not UTF-8 (--encoding-errors replace takes it)") from None
    return checked_text(found, text)


def line_of_text(data: bytes, text: Text) -> str:
    """The document of a line of JSON.

    Raises:
        SampleError: the line is no JSON object, or has no text.
    """
    try:
        line = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", text.errors)
    except UnicodeError:
        raise SampleError("unsupported", "the line is not UTF-8 (--encoding-errors replace takes it)") from None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise SampleError("corrupt", "the line is not JSON") from None
    if not isinstance(found, dict):
        raise SampleError("bad-row", "the line is no JSON object")
    value = found.get(text.field)
    if not isinstance(value, str):
        if text.field not in found:
            named = ", ".join(map(repr, list(found)[:5])) or "none"
            raise SampleError("no-text", f"it has no {text.field!r} (--text-field); its keys are {named}")
        raise SampleError("no-text", f"{text.field!r} is {'null' if value is None else 'no text'} (--text-field)")
    return checked_text(value, text)


def checked_text(found: str, text: Text) -> str:
    """A document that can be tokenized.

    Raises:
        SampleError: it is blank, or no Unicode.
    """
    if not found or found.isspace():
        raise SampleError("empty", "the document is empty or blank")
    try:
        found.encode()
    except UnicodeError:  # a half of a surrogate pair, which JSON can spell
        if text.errors == "strict":
            raise SampleError(
                "unsupported", "it holds half a surrogate pair (--encoding-errors replace takes it)"
            ) from None
        return found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return found


def keys_of(head: bytes) -> set[str]:
    """Keys of the first line of JSON; none where it is longer than what was looked at."""
    try:
        found = json.loads(head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0])
    except (ValueError, RecursionError):
        return set()
    return set(found) if isinstance(found, dict) else set()
