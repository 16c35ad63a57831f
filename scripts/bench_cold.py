"""`scripts/bench read --part cold`: stores that are not in memory, shuffled, in process, in batches of what is stored,
against reading the same files from end to end; the raw folder beside it.

Each run is a process of its own, since the system does not drop what a process has mapped, and counts only if the disk
gave at least 95 of 100 bytes. A machine whose host caches the disk gives memory's speed: to see a disk of a given speed
there, run this in a group that is limited, as in `systemd-run --scope -p IOReadBandwidthMax="/dev/sda 500M"`.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["read_cold"]

BATCH, COPIES = 256, 8
LEAST = 0.95


def read_cold(source: Path, folder: Path, repeats: int) -> None:
    """Build stores of over 1 GB from 8,000 images, and measure in turns."""
    stores = _stores(source, folder)
    runs = [(what, name) for name in stores for what in ("sequential", "batches")] + [("files", "raw folder")]
    found: dict[tuple[str, str], list[float]] = {run: [] for run in runs}
    for _ in range(repeats):
        for what, name in runs:
            path = stores.get(name, source)
            asked = [sys.executable, __file__, what, str(path)]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
            found[what, name].append(json.loads(done.stdout))
    middle = {run: statistics.median(rates) for run, rates in found.items()}
    for (what, name), rates in found.items():
        print(f"{name:14} {what:10} {middle[what, name]:8,.0f} MB/s   {min(rates):,.0f} to {max(rates):,.0f}")
    for name in stores:
        print(f"{name}: batches are {middle['batches', name] / middle['sequential', name]:.2f} of the sequential read")
    for kind in ("jpg", "raw"):
        ratio = middle["batches", f"{kind}, LMDB"] / middle["batches", f"{kind}, tar"]
        print(f"{kind}: LMDB is {ratio:.2f} of tar")


def _stores(source: Path, folder: Path) -> dict[str, Path]:
    """The same images as JPEGs (COPIES times) and raw arrays, in both kinds of store."""
    from bench_build import SIDE
    from bench_read import jpegs

    import packer_reader

    one = packer_reader.open(jpegs(source, folder, SIDE))
    images = folder / "images"
    for number in range(len(one)):
        first = images / "0" / str(number % 100) / f"{number}.jpg"
        first.parent.mkdir(parents=True, exist_ok=True)
        first.write_bytes(one.encoded(number)["jpg"])
        for copy in range(1, COPIES):
            other = images / str(copy) / str(number % 100) / first.name
            other.parent.mkdir(parents=True, exist_ok=True)
            os.link(first, other)
    raw = ("--resize", "224", "--fit", "crop", "--encode", "raw")
    stores = {}
    for kind, path, options in (("jpg", images, ()), ("raw", source, raw)):
        for form, command, name in (("tar", ("shard", "--size", "64MB"), kind), ("LMDB", ("build",), f"{kind}.lmdb")):
            out = folder / name
            asked = [sys.executable, "-m", "packer", command[0], str(path), str(out), "--quiet", *command[1:], *options]
            subprocess.run(asked, check=True, capture_output=True)
            stores[f"{kind}, {form}"] = out
    shutil.rmtree(images)
    return stores


def sequential(path: Path) -> None:
    """All shards from end to end."""
    buffer = bytearray(1 << 22)
    for file in _shards(path):
        with file.open("rb", buffering=0) as data:
            while data.readinto(buffer):
                pass


def batches(path: Path) -> None:
    """An epoch in process: encoded JPEGs, or raw arrays."""
    from packer_reader import StreamDataset

    for _ in StreamDataset(path, batch_size=BATCH, decode="torch" if path.name.startswith("raw") else "bytes"):
        pass


def files(path: Path) -> None:
    """The raw folder in random order."""
    found = _shards(path)
    for number in np.random.default_rng(0).permutation(len(found)).tolist():
        found[number].read_bytes()


def _shards(path: Path) -> list[Path]:
    """What holds the samples: tar files, LMDB's file, or all files of a folder that is no store."""
    shards = sorted([*path.glob("*.tar"), *path.glob("data.mdb")])
    return shards or sorted(one for one in path.rglob("*") if one.is_file())


def _from_disk() -> int:
    """Bytes that this process has had fetched."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


def main() -> None:
    """Measure one way of reading: megabytes a second on standard output."""
    from packer.measure.limits import forget
    from packer_reader import StreamDataset  # noqa: F401 - loaded before the clock runs

    ways: dict[str, Callable[[Path], None]] = {"sequential": sequential, "batches": batches, "files": files}
    way, path = ways[sys.argv[1]], Path(sys.argv[2])
    size = sum(file.stat().st_size for file in _shards(path))
    forget(_shards(path))
    before, started = _from_disk(), time.perf_counter()
    way(path)
    seconds = time.perf_counter() - started
    if _from_disk() - before < LEAST * size:
        raise SystemExit(f"{way.__name__}: {_from_disk() - before:,} of {size:,} bytes came from the disk")
    print(size / seconds / 1e6)


if __name__ == "__main__":
    main()
