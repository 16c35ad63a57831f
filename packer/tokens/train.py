"""A tokenizer made here: byte-level BPE over the user's own documents, the same bytes every time.

Byte-level means that any text can be written, and comes back exactly (Radford et al., GPT-2, 2019). The library's
trainer gives the same merges whatever its threads; documents are read in sorted order.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from packer.sources.refs import SPOOL, RefTable, RefWriter
from packer.sources.text import Documents
from packer.text import Text
from packer_reader.errors import MissingError, OutputError, SampleError, SourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["END", "Trained", "train_tokenizer"]

END = "<|endoftext|>"
"""The one special token of a trained tokenizer; its id is 0."""
_LEAST = 257
"""Ids: the bytes, and the end of text."""


class Trained:
    """What training came to."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.documents = 0
        self.bytes = 0
        self.skipped = 0
        self.problem = ""
        """The first document that was skipped, and why."""
        self.vocabulary = 0


def train_tokenizer(
    paths: Sequence[str],
    out: str,
    vocabulary: int,
    text: Text | None = None,
    *,
    limit: int | None = None,
    quiet: bool = True,
) -> Trained:
    """Train a byte-level BPE and write its tokenizer.json.

    Args:
        paths: files and folders of text.
        out: the file to write; it must not exist.
        vocabulary: ids in all, with the 256 bytes and the end of text.
        text: how documents are read.
        limit: bytes of text that are enough; documents are then taken evenly over all. None takes all, which the
            library holds in memory as counts of words.
        quiet: draw no progress; the library has bars of its own, on a terminal.

    Raises:
        UsageError: an argument has a value that cannot be used.
        OutputError: the file exists, or cannot be written.
        SourceError: there is no document.
        MissingError: `tokenizers` is not installed.
    """
    if not _LEAST <= vocabulary <= 1 << 24:
        raise UsageError(f"--vocab is {vocabulary}, it must be from {_LEAST} (the bytes, and {END}) to {1 << 24}")
    target = Path(out)
    if target.exists():
        raise OutputError(f"{out!r} exists already: choose another name, or remove it")
    if not target.parent.is_dir():
        raise OutputError(f"{str(target.parent)!r} is no folder: make it, or name another one")
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingError("training needs tokenizers: pip install 'packer-data[text]'") from None
    trained = Trained()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=not quiet,
    )
    tokenizer.train_from_iterator(_documents(paths, text or Text(), limit, trained), trainer)
    if not trained.documents:
        raise SourceError(f"none of {trained.skipped} documents can be read ({trained.problem}): nothing was trained")
    trained.vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        tokenizer.save(str(partial))
        partial.rename(target)
    except Exception as error:  # noqa: BLE001 - the library raises Exception itself
        partial.unlink(missing_ok=True)
        raise OutputError(f"{out!r} cannot be written ({error}): check the disk and its permissions") from None
    return trained


def _documents(paths: Sequence[str], text: Text, limit: int | None, trained: Trained) -> Iterator[str]:
    """The documents in sorted order, every n-th where there is a limit; bad ones are counted."""
    with tempfile.TemporaryDirectory(prefix="packer-train-") as name:
        folder, source = Path(name), Documents(tuple(paths), text)
        with RefWriter(folder) as refs:
            listing = source.scan(refs)
        source = source.spooled_at(folder / SPOOL)
        table = RefTable(folder)
        step = 1 if limit is None else max(1, -(-listing.bytes // max(1, limit)))
        for number in range(0, len(table), step):
            try:
                document = source.document(table[number])
            except SampleError as error:
                trained.skipped += 1
                trained.problem = trained.problem or f"{table.name(number)!r}: {error.reason}"
                continue
            trained.documents += 1
            trained.bytes += len(document.encode())
            yield document
