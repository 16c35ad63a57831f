"""Names of keys, members and files (specification, section 2)."""

from __future__ import annotations

import re

__all__ = [
    "CLASSES",
    "DATA_FILE",
    "DEFAULT_PREFIX",
    "ERRORS",
    "INFO",
    "MANIFEST",
    "MAX_KEY",
    "SHARDS",
    "column_file",
    "index_file",
    "is_file_name",
    "is_prefix",
    "is_suffix",
    "key_text",
    "line_text",
    "shard_file",
    "tokenizer_file",
]

MANIFEST = "manifest.json"
CLASSES = "classes.txt"
ERRORS = "errors.jsonl"
INFO = "_info.json"
DATA_FILE = "data.mdb"
SHARDS = "columns/shards.col"
DEFAULT_PREFIX = "train"
"""What shards are called when the data has no splits; Hugging Face finds them by it."""
MAX_KEY = 10**16 - 1
"""Keys are written with 16 decimal digits."""

_PREFIX = re.compile(r"[A-Za-z0-9_]{1,64}")
_SUFFIX = re.compile(r"[a-z0-9_]{1,32}(\.[a-z0-9_]{1,16}){0,2}")
_FILE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,99}/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,149}")


def key_text(key: int) -> str:
    """The key as the first part of a tar member's name."""
    return f"{key:016d}"


def shard_file(prefix: str, number: int) -> str:
    """Name of a tar shard."""
    return f"{prefix}-{number:06d}.tar"


def index_file(prefix: str, number: int) -> str:
    """Name of the index of a shard, or (prefix `data`) of a run of LMDB records."""
    return f"{prefix}-{number:06d}.index"


def column_file(name: str) -> str:
    """Name of a column's file."""
    return f"columns/{name}.col"


def tokenizer_file(kind: str) -> str:
    """Name of the copy of a store's tokenizer, of kind `tokenizers` or `sentencepiece`."""
    return "tokenizer.model" if kind == "sentencepiece" else "tokenizer.json"


def is_prefix(text: object) -> bool:
    """Whether this can stand before the number in a shard's name: a split's name."""
    return isinstance(text, str) and _PREFIX.fullmatch(text) is not None


def is_suffix(text: object) -> bool:
    """Whether this can stand behind the key in a member's name."""
    return isinstance(text, str) and _SUFFIX.fullmatch(text) is not None


def is_file_name(text: object) -> bool:
    """Whether a manifest may list this file: relative, at most one folder deep, no dot names, so no way out."""
    return isinstance(text, str) and _FILE.fullmatch(text) is not None


def line_text(text: str) -> str:
    r"""A name on a line of its own: control characters, backslashes and undecodable bytes are escaped.

    Example:
        >>> line_text("new\\nline")
        'new\\\\nline'
    """
    return "".join(c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode() for c in text)
