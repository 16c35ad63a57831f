"""Tokens of a store in the forms that other trainers read: one flat file, or Megatron's `.bin` and `.idx`.

Megatron-LM's indexed data set: `MMIDIDX` and two zero bytes, version 1 (u64), a code of the dtype (u8: 4 is int32, 8 is
uint16), sequences (u64), document indices (u64); then per sequence its tokens (int32), where it begins in the .bin in
bytes (int64), and where documents begin among the sequences (int64, with the end), all little-endian. Here each
document is a sequence of its own.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from packer_reader.decode import decode_field
from packer_reader.errors import OutputError, UsageError, os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from packer_reader.stores.base import Store

__all__ = ["Form", "export_tokens"]

Form = Literal["megatron", "bin"]

_MAGIC = b"MMIDIDX\x00\x00"
_CODES = {"int32": 4, "uint16": 8}
_CHUNK = 256
"""Samples read at a time."""
_INT32 = 1 << 31


def export_tokens(
    store: Store, out: str, form: Form, heard: Callable[[int], None] = lambda _: None
) -> tuple[list[str], int, int]:
    """Write the valid tokens of a store, in stored order.

    Args:
        store: of tokens.
        out: `bin`: the file; `megatron`: what `.bin` and `.idx` are put behind.
        form: which.
        heard: told how many samples are done since it was told last.

    Returns:
        The files, documents and tokens. A document that was cut to fit sequences counts once for each piece.

    Raises:
        UsageError: the store holds no tokens, or there is no such form.
        OutputError: a file exists, or cannot be written.
        StoreError: a sample is damaged.
    """
    dtype, stacked = _dtype(store, form), store.manifest.stacked
    base = Path(out)
    if form == "megatron" and base.suffix in {".bin", ".idx"}:
        base = base.with_suffix("")
    if not base.name or base.is_dir():
        raise OutputError(f"{out!r} names a folder: name the file to write in it")
    files = [base] if form == "bin" else [base.with_name(f"{base.name}.bin"), base.with_name(f"{base.name}.idx")]
    for file in files:
        if file.exists():
            raise OutputError(f"{str(file)!r} exists already: choose another name, or remove it")
    partial = [file.with_name(f".{file.name}.{os.getpid()}") for file in files]
    lengths = [np.zeros(0, np.int64)]
    try:
        with partial[0].open("wb") as data:
            for tokens, counts, samples in _documents(store, stacked=stacked):
                data.write(np.ascontiguousarray(tokens.astype(dtype, copy=False)).data)
                lengths.append(counts)
                heard(samples)
        counts = np.concatenate(lengths)
        if form == "megatron":
            partial[1].write_bytes(_index(counts, dtype))
        for written, file in zip(partial, files, strict=True):
            written.rename(file)
    except OSError as error:
        raise os_error(error, "writing", base) from None
    finally:
        for written in partial:
            written.unlink(missing_ok=True)
    return [str(file) for file in files], len(counts), int(counts.sum())


def _dtype(store: Store, form: Form) -> np.dtype[Any]:
    """What tokens are written as."""
    if form not in get_args(Form):
        raise UsageError(f"--to is {form!r}, it must be one of {', '.join(get_args(Form))}")
    field = store.manifest.field("tokens")
    if field is None or field.kind != "tokens":
        raise UsageError(f"{store!r} holds no tokens: export is for stores of text")
    if form == "megatron" and field.dtype == "uint32":
        if int(store.manifest.recipe["text"]["vocabulary"]) > _INT32:
            raise UsageError("ids over 2^31 cannot be written for Megatron, whose tokens are int32")
        return np.dtype(np.int32)
    return np.dtype(field.dtype)


def _documents(store: Store, *, stacked: bool) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int64], int]]:
    """Valid tokens of some samples, those of each document among them, and how many samples these are."""
    fields = store.manifest.fields
    for first in range(0, len(store), _CHUNK):
        numbers = np.arange(first, min(first + _CHUNK, len(store)))
        if not stacked:
            documents = [decode_field(fields[0], view) for (view,) in store.read(numbers, [0])]
            yield np.concatenate(documents), np.array([len(one) for one in documents], np.int64), len(numbers)
            continue
        rows = store.read(numbers, [0, 1])
        ends = [decode_field(fields[1], view) for _, view in rows]
        valid = [decode_field(fields[0], view)[: own[-1]] for (view, _), own in zip(rows, ends, strict=True)]
        yield np.concatenate(valid), np.concatenate([np.diff(own) for own in ends]).astype(np.int64), len(numbers)


def _index(counts: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> bytes:
    begins = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype("<i8") * dtype.itemsize
    head = _MAGIC + struct.pack("<QBQQ", 1, _CODES[dtype.name], len(counts), len(counts) + 1)
    return head + counts.astype("<i4").tobytes() + begins.tobytes() + np.arange(len(counts) + 1, dtype="<i8").tobytes()
