"""Where each field of each sample lies, by shard or by run of LMDB records (specification, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer_reader.errors import FormatError
from packer_reader.format.columns import INDEX_MAGIC, frame_bytes, parse_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Index", "index_bytes", "parse_index"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Index:
    """Columns over the samples of one shard, in stored order; each array has one row per sample."""

    suffixes: tuple[str, ...]
    """The store's fields, in stored order."""
    key: Array
    """u64 (n,), strictly rising."""
    offset: Array
    """u64 (fields, n): first byte of the field, in the tar file or in the LMDB value."""
    size: Array
    """u32 (fields, n): bytes of the field."""
    crc: Array
    """u32 (fields, n): CRC-32 of the field's bytes."""
    value: Array | None = None
    """u64 (n,): key of the record (LMDB value, members of a tar) that holds the sample; None in a tar's index where
    each sample is a record."""

    def __len__(self) -> int:
        return len(self.key)


def index_bytes(index: Index) -> bytes:
    """The file of an index."""
    arrays: dict[str, Array] = {"key": index.key}
    if index.value is not None:
        arrays["value"] = index.value
    arrays |= {"offset": index.offset, "size": index.size, "crc": index.crc}
    return frame_bytes(INDEX_MAGIC, {"suffixes": list(index.suffixes)}, arrays)


def parse_index(
    what: str,
    data: bytes | memoryview,
    suffixes: Sequence[str],
    *,
    samples: int,
    container: int | None,
    stacked: bool = False,
) -> Index:
    """Check an index against what the manifest says and view its columns.

    Args:
        what: the file's name, for messages.
        data: the whole file, usually a map.
        suffixes: the store's fields.
        samples: how many samples the shard has.
        container: bytes of the tar file, which every field must lie in; None for LMDB, whose values are checked as
            they are read.
        stacked: whether records are blocks of samples.

    Raises:
        FormatError: with every way in which it differs.
    """
    frame = parse_frame(what, INDEX_MAGIC, data)
    fields = len(suffixes)
    expected = {"key": ("<u8", (samples,)), "offset": ("<u8", (fields, samples))}
    expected |= {"size": ("<u4", (fields, samples)), "crc": ("<u4", (fields, samples))}
    if container is None or stacked:
        expected["value"] = ("<u8", (samples,))
    problems = []
    if list(frame.meta.get("suffixes", ())) != list(suffixes):
        problems.append(f"is about fields {frame.meta.get('suffixes')!r}, the manifest about {list(suffixes)!r}")
    for name, (dtype, shape) in expected.items():
        array = frame.arrays.get(name)
        if array is None or array.dtype.str != dtype or array.shape != shape:
            found = "nothing" if array is None else f"{array.dtype.str} {array.shape}"
            problems.append(f"array {name!r} should be {dtype} {shape}, found {found}")
    if problems:
        raise FormatError(what, problems)
    arrays = frame.arrays
    index = Index(tuple(suffixes), arrays["key"], arrays["offset"], arrays["size"], arrays["crc"], arrays.get("value"))
    if samples and container is not None:
        ends = index.offset + index.size
        if bool((ends > np.uint64(container)).any()) or bool((ends < index.offset).any()):
            raise FormatError(what, [f"a field lies outside the shard's {container} bytes"])
    return index
