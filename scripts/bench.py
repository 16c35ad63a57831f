"""Benchmarks. Each alternates the product with the bare libraries it is made of, and reports the ratio of medians.

help   start of `packer --help`
build  the builder: see bench_build.py for its parts (--part jpg, raw, large, sizes, keep, scan, reuse)
read   256x256 JPEGs to uint8 batches of 256, shuffled: a stock DataLoader against a bare decode loop
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import simplejpeg

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).parent))

from bench_build import PARTS, SIDE, alternate


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
    parser.add_argument("--part", action="append", choices=sorted(PARTS), help="of build; jpg when left out")
    parser.add_argument("--images", help="a folder of JPEGs; photographs are cut up when left out")
    parser.add_argument("--count", type=int, default=3000, help="images to make")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.what == "build":
        with tempfile.TemporaryDirectory() as name:
            source = images(arguments, Path(name))
            for part in arguments.part or ["jpg"]:
                PARTS[part](source, Path(name) / part, arguments.repeats)
        return
    {"help": bench_help, "read": bench_read}[arguments.what](arguments)


if __name__ == "__main__":
    main()
