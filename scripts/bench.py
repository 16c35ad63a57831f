"""Benchmarks. Each alternates the product with the bare libraries it is made of, and reports the ratio of medians.

help   start of `packer --help`
build  JPEGs to 256x256 JPEG: packer with two workers against read + decode + resize + encode in two processes
read   256x256 JPEGs to uint8 batches of 256, shuffled: a stock DataLoader against a bare decode loop
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).parent))

SIDE, QUALITY = 256, 90


def alternate(repeats: int, runs: dict[str, Callable[[], float]], unit: str, *, lower_is_better: bool = False) -> None:
    """Run each in turn, several times; print medians, spread, and the ratio of the first to the others."""
    values: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            values[name].append(run())
    medians = {name: statistics.median(found) for name, found in values.items()}
    for name, found in values.items():
        print(f"{name:30} median {medians[name]:10,.2f} {unit}   {min(found):,.2f} to {max(found):,.2f} over {repeats}")
    first, *others = medians
    for other in others:
        ratio = medians[other] / medians[first] if lower_is_better else medians[first] / medians[other]
        print(f"{first} is {ratio:.2f} of {other}")


def images(arguments: argparse.Namespace, folder: Path) -> Path:
    """The folder that was named, or photographs cut up."""
    if arguments.images:
        return Path(arguments.images)
    from demo import make_folder

    make_folder(folder / "images", arguments.count // 6)
    return folder / "images"


def bench_help(arguments: argparse.Namespace) -> None:
    def start(*command: str) -> Callable[[], float]:
        def run() -> float:
            started = time.perf_counter()
            subprocess.run([sys.executable, *command], capture_output=True, check=True)
            return time.perf_counter() - started

        return run

    runs = {"packer --help": start("-m", "packer", "--help"), "import click": start("-c", "import click")}
    alternate(max(arguments.repeats, 7), runs, "s", lower_is_better=True)


def chain(path: str) -> int:
    """One image with the libraries alone."""
    import torch

    pixels = simplejpeg.decode_jpeg(Path(path).read_bytes(), "RGB")
    source: Any = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    scaled = torch.nn.functional.interpolate(source, size=(SIDE, SIDE), mode="bilinear", antialias=True)
    small = scaled[0].permute(1, 2, 0).contiguous().numpy()
    return len(simplejpeg.encode_jpeg(small, QUALITY, "RGB", "420"))


def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def bench_build(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = images(arguments, folder)
        paths = [str(path) for path in sorted(source.rglob("*")) if path.is_file()]

        def build(suffix: str) -> Callable[[], float]:
            def run() -> float:
                out = folder / f"out{suffix}"
                started = time.perf_counter()
                options = f"--resize {SIDE} --fit stretch --workers 2 --overwrite --json".split()
                command = [sys.executable, "-m", "packer", "build", str(source), str(out), *options]
                subprocess.run(command, check=True, capture_output=True)
                return len(paths) / (time.perf_counter() - started)

            return run

        def bare() -> float:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["torch", "simplejpeg"])
            with context.Pool(2, one_thread) as pool:
                pool.map(chain, paths[:64], 16)
                started = time.perf_counter()
                pool.map(chain, paths, 64)
                return len(paths) / (time.perf_counter() - started)

        print(f"{len(paths):,} images; packer with its start and final sync, the bare chain without")
        alternate(
            arguments.repeats,
            {"packer shard": build(""), "packer lmdb": build(".lmdb"), "bare chain": bare},
            "images/s",
        )


def bench_read(arguments: argparse.Namespace) -> None:
    import packer_reader
    from packer import Recipe, build
    from packer_reader import StreamDataset, loader

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(str(images(arguments, folder)), str(folder / "store"), Recipe(resize=(SIDE,), fit="crop", encode="jpg"))
        opened = packer_reader.open(folder / "store")
        blobs = [opened.encoded(number)["jpg"] for number in range(len(opened))]
        slot = np.empty((SIDE, SIDE, 3), np.uint8)

        def bare() -> float:
            started = time.perf_counter()
            for blob in blobs:
                simplejpeg.decode_jpeg(blob, "RGB", buffer=slot)
            return len(blobs) / (time.perf_counter() - started)

        def streamed(workers: int) -> Callable[[], float]:
            batches = loader(StreamDataset(folder / "store", batch_size=256), num_workers=workers)

            def run() -> float:
                started = time.perf_counter()
                count = sum(len(batch["label"]) for batch in batches)
                return count / (time.perf_counter() - started)

            return run

        runs = {"loader, 2 workers": streamed(2), "loader, in process": streamed(0), "bare decode, one core": bare}
        alternate(arguments.repeats, runs, "images/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["help", "build", "read"])
    parser.add_argument("--images", help="a folder of JPEGs; photographs are cut up when left out")
    parser.add_argument("--count", type=int, default=3000, help="images to make")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    {"help": bench_help, "build": bench_build, "read": bench_read}[arguments.what](arguments)


if __name__ == "__main__":
    main()
