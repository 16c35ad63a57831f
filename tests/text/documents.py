"""Documents that the tests make, and what a store of them holds."""

from __future__ import annotations

import gzip
import io
import json
import random
from typing import TYPE_CHECKING, Any

import packer_reader
from packer import Job, Recipe, build, tokenized

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from packer.text import Text
    from packer_reader import Store

END = 256
"""End of text of the built-in tokenizer."""


def words(count: int, seed: int = 0, mean: float = 60) -> list[str]:
    """Documents of different lengths, none of them alike."""
    rng = random.Random(seed)
    return [
        f"{number}: "
        + " ".join(rng.choices(("the", "cat", "sat", "on", "ein", "Ö", "日本"), k=int(rng.expovariate(1 / mean)) + 1))
        for number in range(count)
    ]


def write(path: Path, documents: Sequence[str]) -> Path:
    """Documents in the form that the name's extension says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    if name.endswith(".parquet"):
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(
            pa.table({"id": list(range(len(documents))), "text": list(documents)}), path, row_group_size=7
        )
        return path
    if name.endswith((".csv", ".tsv")):
        import csv

        stream = io.StringIO()
        writer = csv.writer(stream, delimiter="\t" if name.endswith(".tsv") else ",")
        writer.writerows([["id", "text"], *([number, text] for number, text in enumerate(documents))])
        data = stream.getvalue().encode()
    elif name.endswith(".jsonl"):
        data = "".join(json.dumps({"text": text, "n": 1}) + "\n" for text in documents).encode()
    else:
        data = "".join(f"{text}\n" for text in documents).encode()
    if path.suffix == ".gz":
        data = gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :])
    elif path.suffix == ".zst":
        import zstandard

        half = len(data) // 2
        data = b"".join(zstandard.ZstdCompressor().compress(part) for part in (data[:half], data[half:]))
    path.write_bytes(data)
    return path


def built(source: Path | list[Path], out: Path, text: Text | None = None, **options: Any) -> Store:
    """A store of documents, made in this process."""
    job: dict[str, Any] = {name: options.pop(name) for name in ("workers", "runner", "source_type") if name in options}
    paths = [str(path) for path in source] if isinstance(source, list) else str(source)
    build(paths, str(out), Recipe(text=text or tokenized(), **options), Job(**({"workers": 1} | job)))
    return packer_reader.open(out)


def decoded(tokens: npt.NDArray[np.unsignedinteger[Any]]) -> str:
    """The text of one document of the built-in tokenizer."""
    values = tokens.tolist()
    assert values[-1] == END
    return bytes(values[:-1]).decode()


def texts_of(store: Store) -> list[str]:
    """All documents of a store of the built-in tokenizer, sorted; those of packed ones joined from their pieces."""
    if not store.manifest.stacked:
        return sorted(decoded(sample["tokens"]) for sample in store)
    raise AssertionError("pieces of documents are put together by the tests that know how they were cut")
