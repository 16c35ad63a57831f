"""The parts of `scripts/bench read`: shuffled uint8 batches of 256 through a stock DataLoader, on two cores, against
peers and bare loops over the same bytes. First epochs (processes, fresh memory) and the median of the later ones apart.

jpg    256x256 JPEGs of quality 90
raw    224x224 uncompressed
crop   RandomResizedCrop(224) from 256x256 JPEGs
crop512     the same from 512x512
centre512   CenterCrop(224) from 512x512
tools  what `packer bench` and `packer tune` say, against loops of this script: see bench_tools.py
cold   stores that are not in memory, against reading their files from end to end: see bench_cold.py
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from bench_build import SIDE
from torch.utils.data import DataLoader, Dataset

__all__ = ["READ_PARTS"]

BATCH, EPOCHS = 256, 5


def alternate(repeats: int, runs: dict[str, Callable[[], list[float]]]) -> None:
    """Run each in turn, several times; print first epoch and steady state, and what the first one is of the others."""
    first: dict[str, list[float]] = {name: [] for name in runs}
    steady: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            rates = run()
            first[name].append(rates[0])
            steady[name].append(statistics.median(rates[1:] or rates))
    for name in runs:
        low, high = min(steady[name]), max(steady[name])
        print(
            f"{name:28} {statistics.median(steady[name]):10,.0f} images/s   {low:,.0f} to {high:,.0f} over {repeats}; "
            f"first epoch {statistics.median(first[name]):,.0f}"
        )
    *ours, last = runs
    for name in ours if last == "ffcv" else ours[:0]:
        print(f"{name} is {statistics.median(steady[name]) / statistics.median(steady[last]):.2f} of {last}")
    one, *others = runs
    for other in others:
        ratios = [statistics.median(rates[one]) / statistics.median(rates[other]) for rates in (steady, first)]
        print(f"{one} is {ratios[0]:.2f} of {other}; in the first epoch {ratios[1]:.2f}")


def epochs(batches: Iterable[Any], count: Callable[[Any], int]) -> list[float]:
    """Samples per second of each epoch."""
    found = []
    for _ in range(EPOCHS):
        started = time.perf_counter()
        samples = sum(count(batch) for batch in batches)
        found.append(samples / (time.perf_counter() - started))
    return found


def ours(store: Path, workers: int, threads: int, **options: Any) -> Callable[[], list[float]]:
    from packer_reader import StreamDataset

    def run() -> list[float]:
        ds = StreamDataset(store, batch_size=BATCH, threads=threads, **options)
        batches = DataLoader(ds, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
        return epochs(batches, lambda batch: len(batch["label"]))

    return run


def peer(name: str, mode: str, source: Path, folder: Path, *options: str) -> Callable[[], list[float]]:
    script, out = Path(__file__).with_name("peers.py"), folder / f"{name}-{mode}"
    if not out.exists():
        command = [os.environ["PACKER_PEERS"], str(script), name, mode, str(source), str(out)]
        subprocess.run(command, check=True, capture_output=True)

    def run() -> list[float]:
        command = [os.environ["PACKER_PEERS"], str(script), name, mode, "--read", str(out), *options]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found: list[float] = json.loads(done.stdout.splitlines()[-1])["rates"]
        return found

    return run


def peers(names: tuple[str, ...], mode: str, source: Path, folder: Path, *options: str) -> dict[str, Any]:
    if "PACKER_PEERS" not in os.environ:
        print("PACKER_PEERS is not set: no peers (see peers.py)")
        return {}
    return {name: peer(name, mode, source, folder, *options) for name in names}


def build(source: Path, out: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "packer", "shard", str(source), str(out), "--quiet", "--size", "64MB", *options]
    subprocess.run(command, check=True, capture_output=True)
    return out


def jpegs(source: Path, folder: Path, side: int, *options: str) -> Path:
    out = folder / "-".join(("jpg", str(side), *options))
    return build(source, out, "--resize", str(side), "--fit", "stretch", "--encode", "jpg", *options)


def bare(blobs: list[bytes]) -> float:
    """Pictures per second of a loop that only decodes, into one slot that stays in the cache."""
    slot = np.empty((SIDE, SIDE, 3), np.uint8)
    started = time.perf_counter()
    for blob in blobs:
        simplejpeg.decode_jpeg(blob, "RGB", buffer=slot)
    return len(blobs) / (time.perf_counter() - started)


def read_jpg(source: Path, folder: Path, repeats: int) -> None:
    import packer_reader

    store = jpegs(source, folder, SIDE)
    opened = packer_reader.open(store)
    blobs = [opened.encoded(number)["jpg"] for number in range(len(opened))]

    def doubled() -> list[float]:
        return [2 * bare(blobs)]

    def at_once() -> list[float]:
        with get_context("fork").Pool(2) as pool:
            return [sum(pool.map(bare, [blobs, blobs], chunksize=1))]

    runs = {"1 worker x 2 threads": ours(store, 1, 2), "2 workers": ours(store, 2, 1)}
    runs |= {"bare loop, doubled": doubled, "two bare loops at once": at_once}
    alternate(repeats, runs | peers(("ffcv", "litdata", "webdataset"), "jpg", source, folder))


class InMemory(Dataset[Any]):
    """Pixels in RAM, taken by index: the least that a DataLoader can do."""

    def __init__(self, images: torch.Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, numbers: list[int]) -> torch.Tensor:
        return self.images[torch.tensor(numbers)]


def unchanged(batch: Any) -> Any:
    return batch


def read_raw(source: Path, folder: Path, repeats: int) -> None:
    import packer_reader

    store = build(source, folder / "raw", "--resize", "224", "--fit", "crop", "--encode", "raw")
    opened = packer_reader.open(store)
    memory = InMemory(torch.from_numpy(np.stack([opened[number]["image"] for number in range(2000)])))

    def in_memory() -> list[float]:
        batches = DataLoader(memory, batch_size=BATCH, shuffle=True, num_workers=2, collate_fn=unchanged)
        return epochs(batches, len)

    runs = {"2 workers": ours(store, 2, 1), "1 worker x 2 threads": ours(store, 1, 2), "tensor in RAM": in_memory}
    alternate(repeats, runs | peers(("ffcv", "litdata", "webdataset"), "raw", source, folder))


def read_crop(source: Path, folder: Path, repeats: int, *, side: int = SIDE, mode: str = "jpg") -> None:
    from packer_reader import RandomResizedCrop

    crop, runs = RandomResizedCrop(224), dict[str, Callable[[], list[float]]]()
    for name, options in (("", ()), (", --roi", ("--roi",))):
        store = jpegs(source, folder, side, *options)
        runs[f"1 worker x 2 threads{name}"] = ours(store, 1, 2, crop=crop)
        runs[f"2 workers{name}"] = ours(store, 2, 1, crop=crop)
    alternate(repeats, runs | peers(("ffcv",), mode, source, folder, "--crop", "random"))


def read_centre(source: Path, folder: Path, repeats: int) -> None:
    from packer_reader import CenterCrop

    crop = CenterCrop(224)
    runs = {
        "2 workers": ours(jpegs(source, folder, 512), 2, 1, crop=crop),
        "2 workers, --roi": ours(jpegs(source, folder, 512, "--roi"), 2, 1, crop=crop),
    }
    alternate(repeats, runs | peers(("ffcv",), "jpg512", source, folder, "--crop", "centre"))


READ_PARTS: dict[str, Callable[[Path, Path, int], None]] = {
    "jpg": read_jpg,
    "raw": read_raw,
    "crop": read_crop,
    "crop512": partial(read_crop, side=512, mode="jpg512"),
    "centre512": read_centre,
}
