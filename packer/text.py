"""How text becomes tokens: the part of a recipe that is about documents."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from dataclasses import field as attribute
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from packer_reader.errors import UsageError
from packer_reader.format.fields import MAX_SEQUENCE, sequence_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Errors", "Pack", "Separator", "Text"]

Pack = Literal["none", "concat", "bestfit"]
Separator = Literal["file", "line", "blank"]
Errors = Literal["strict", "replace"]

_LEAST = 32
"""Tokens of a sequence at least: a unit numbers its sequences with 24 bits."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """What documents are made into. `packer.tokenized` makes one; the tokenizer's facts are its file's.

    Raises:
        UsageError: naming the option that cannot be used.
    """

    tokenizer: str = "bytes"
    """`bytes`, `tokenizers` (a tokenizer.json) or `sentencepiece` (a .model)."""
    digest: str = ""
    """SHA-256 of the tokenizer's file; empty for `bytes`."""
    vocabulary: int = 257
    """The largest id and one, added tokens included."""
    bos: int | None = None
    """Id put before each document."""
    eos: int | None = 256
    """Id put behind each document."""
    pad: int = 256
    """Id that fills sequences behind their valid tokens."""
    allow_special: bool = False
    """Take the names of special tokens inside documents for those tokens, instead of plain text."""
    pack: Pack = "none"
    """`none`: a sample is a document. `concat`: documents end to end, cut every `seq_len` tokens. `bestfit`: documents
    as whole as they can be in sequences of `seq_len`."""
    seq_len: int | None = None
    """Tokens of a sequence; with `concat` and `bestfit`."""
    keep_text: bool = False
    """Store the text beside its tokens; with `none`."""
    field: str = "text"
    """Key or column of the text in JSON lines, CSV and Parquet."""
    separator: Separator = "file"
    """What ends a document of a .txt file: the file, a line, or blank lines."""
    errors: Errors = "strict"
    """`strict` skips a document that is no valid Unicode, `replace` puts U+FFFD in place of what is not."""
    max_document: int = 16 << 20
    """Bytes; longer documents are skipped."""
    file: str = attribute(default="", compare=False)
    """Path of the tokenizer on this machine; not part of the recipe."""

    def __post_init__(self) -> None:
        for name, choices in (("pack", Pack), ("separator", Separator), ("errors", Errors)):
            if getattr(self, name) not in get_args(choices):
                option = {"separator": "doc-sep", "errors": "encoding-errors"}.get(name, name)
                raise UsageError(
                    f"--{option} is {getattr(self, name)!r}, it must be one of {', '.join(get_args(choices))}"
                )
        for name in ("bos", "eos", "pad"):
            number = getattr(self, name)
            if number is not None and not 0 <= number < self.vocabulary:
                raise UsageError(f"--{name} is {number}, the tokenizer's ids are 0 to {self.vocabulary - 1}")
        if self.pack == "none" and self.seq_len is not None:
            raise UsageError(
                "--seq-len is about packing: give --pack concat or bestfit, or leave it out and read with "
                "StreamDataset(..., seq_len=...)"
            )
        if self.pack != "none" and (self.seq_len is None or not _LEAST <= self.seq_len <= MAX_SEQUENCE):
            raise UsageError(
                f"--pack {self.pack} needs --seq-len, tokens from {_LEAST} to {MAX_SEQUENCE} (it is {self.seq_len}); "
                "loops that shift labels by one take one more than their context"
            )
        if self.pack != "none" and self.keep_text:
            raise UsageError("--keep-text stores a text beside its own tokens: leave it out, or --pack")
        if not 1 <= self.max_document <= 1 << 30:
            raise UsageError(f"--max-document is {self.max_document} bytes, it must be from 1 byte to 1 GiB")

    @property
    def dtype(self) -> str:
        """Numpy name of the stored tokens' type: 16 bits only where they hold every id."""
        return "uint16" if self.vocabulary <= 1 << 16 else "uint32"

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Of the stored fields, in their order."""
        if self.seq_len is not None:
            return tuple(field.suffix for field in sequence_fields(self.dtype, self.seq_len, 0))
        return ("tokens.npy", "txt") if self.keep_text else ("tokens.npy",)

    def to_json(self) -> dict[str, Any]:
        """As the recipe keeps it, without the path."""
        document: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        del document["file"]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Of what `to_json` made."""
        return cls(**document)
