"""The parts of the benchmarks that are about text; their source is Python's own library, whatever is named.

build: text   documents of some 4,000 characters to tokens, against `tokenizers` alone in two processes
read: tokens  sequences of 2,048 tokens, against a numpy gather from a memory map of the same ones, and litdata's loader
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["build_text", "read_tokens"]

LENGTH, EPOCHS = 2048, 5
_PIECE = 4000
"""Characters of a document."""
_BYTES = 24 << 20
"""Text that is tokenized."""
_SEQUENCES = 60_000


def documents() -> list[str]:
    """Python's own sources, in pieces."""
    found, size = list[str](), 0
    for path in sorted(Path(os.__file__).parent.rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
        size += len(text)
        if size > _BYTES:
            break
    return [text for text in found if text.strip()]


def packer(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "packer", *arguments, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def encode(job: tuple[str, list[str]]) -> int:
    """Ids of documents by the library alone, as arrays."""
    from tokenizers import Tokenizer

    path, texts = job
    library, tokens = Tokenizer.from_file(path), 0
    for start in range(0, len(texts), 64):
        for one in library.encode_batch(texts[start : start + 64], add_special_tokens=False):
            tokens += len(np.array(one.ids, np.uint16))
    return tokens


def build_text(_: Path, folder: Path, repeats: int) -> None:
    from bench_build import alternate

    folder.mkdir(parents=True, exist_ok=True)
    texts, lines, tokenizer = documents(), folder / "d.jsonl", str(folder / "tok.json")
    size = sum(len(text.encode()) for text in texts) / 1e6
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    packer("tokenizer", "train", str(lines), "--vocab", "8000", "-o", tokenizer)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    def ours(*options: str) -> Callable[[], float]:
        def run() -> float:
            out = folder / "out"
            subprocess.run(["rm", "-rf", str(out)], check=True)
            report = packer("build", str(lines), str(out), "--tokenizer", tokenizer, *options)
            return size / float(report["phases"]["convert"])

        return run

    def bare() -> float:
        with get_context("forkserver").Pool(2) as pool:
            pool.map(encode, [(tokenizer, texts[:2])] * 2)  # started, and the library loaded
            started = time.perf_counter()
            pool.map(encode, [(tokenizer, texts[number::16]) for number in range(16)], chunksize=1)
            return size / (time.perf_counter() - started)

    packed = ours("--pack", "bestfit", "--seq-len", str(LENGTH))
    alternate(repeats, {"bestfit": packed, "documents": ours(), "tokenizers in two processes": bare}, "MB/s")


def rates(batches: Iterable[Any]) -> list[float]:
    """Sequences per second of each epoch, without its first four batches."""
    found = []
    for _ in range(EPOCHS):
        started, count = time.perf_counter(), 0
        for number, batch in enumerate(batches):
            if number == 4:
                started, count = time.perf_counter(), 0
            count += len(batch["tokens"])
        found.append(count / (time.perf_counter() - started))
    return found


def token_stores(folder: Path) -> tuple[dict[str, Path], Path]:
    """Stores of sequences, and the same tokens in one flat file."""
    text = "".join(documents())
    text *= 1 + _SEQUENCES * LENGTH // len(text)
    lines = folder / "d.jsonl"
    with lines.open("w", encoding="utf-8") as file:
        for start in range(0, _SEQUENCES * LENGTH, _PIECE):
            file.write(json.dumps({"text": text[start : start + _PIECE]}) + "\n")
    stores = {"tar": folder / "t", "lmdb": folder / "t.lmdb"}
    for store in stores.values():
        packer("build", str(lines), str(store), "--pack", "concat", "--seq-len", str(LENGTH))
    packer("export", str(stores["tar"]), "--to", "bin", "-o", str(folder / "flat.bin"))
    return stores, folder / "flat.bin"


class Gathered(IterableDataset[dict[str, torch.Tensor]]):
    """What numpy alone takes from a memory map, as int64: the loop that anybody would write."""

    def __init__(self, flat: Path, batch: int) -> None:
        values = np.memmap(flat, np.uint16, "r")
        self.rows, self.batch = values[: len(values) // LENGTH * LENGTH].reshape(-1, LENGTH), batch

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        order = np.random.default_rng(0).permutation(len(self.rows))
        for start in range(0, len(order) - self.batch, self.batch):
            rows = self.rows[order[start : start + self.batch]].astype(np.int64)
            yield {"tokens": torch.from_numpy(rows)}


def gather(flat: Path, batch: int) -> list[float]:
    return rates(DataLoader(Gathered(flat, batch), batch_size=None))


def stream(store: Path, workers: int, batch: int, options: dict[str, Any], *, stock: bool = True) -> list[float]:
    from packer_reader import StreamDataset, loader

    ds = StreamDataset(store, batch_size=batch, **options)
    if not stock:
        return rates(loader(ds, num_workers=workers) if workers else ds)
    return rates(DataLoader(ds, batch_size=None, num_workers=workers, persistent_workers=workers > 0))


def read_tokens(_: Path, folder: Path, repeats: int) -> None:
    from bench_read import peers

    stores, flat = token_stores(folder)
    tokens: dict[str, Any] = {"fields": ("tokens",)}
    forms: dict[str, dict[str, Any]] = {"": tokens, " stored": tokens | {"dtype": "stored"}, " all fields": {}}
    for workers, batch in ((0, 64), (2, 512)):
        runs: dict[str, Callable[[], list[float]]] = {"gather to int64": partial(gather, flat, batch)}
        for name, options in forms.items():
            for kind, store in stores.items():
                runs[kind + name] = partial(stream, store, workers, batch, options)
        # Peers have loaders of their own as well.
        runs["tar, ours"] = partial(stream, stores["tar"], workers, batch, tokens, stock=False)
        runs["tar stored, ours"] = partial(stream, stores["tar"], workers, batch, forms[" stored"], stock=False)
        runs |= peers(("litdata",), f"tokens{batch}", flat, folder)
        compare(f"{workers} workers, batches of {batch}", repeats, runs)


def compare(title: str, repeats: int, runs: dict[str, Callable[[], list[float]]]) -> None:
    """Run each in turn, several times; what all are of the first one and of the last one, which is a peer."""
    steady: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            steady[name].append(statistics.median(run()[1:]))
    print(title)
    first, last = (statistics.median(steady[name]) for name in (next(iter(runs)), list(runs)[-1]))
    for name, found in steady.items():
        middle = statistics.median(found)
        print(
            f"  {name:20} {middle:11,.0f} sequences/s   {min(found):,.0f} to {max(found):,.0f}; "
            f"{middle / first:.2f} of the first, {middle / last:.1f} of the last"
        )
