"""The parts of `scripts/bench build`. Each alternates packer with the bare libraries, and with peers where there are
some.

PACKER_PEERS names the Python of an environment with FFCV, webdataset, MosaicML and litdata (see peers.py); without it
the peers are left out. Rates are of the conversion; starting workers and the final sync are reported apart.

jpg    JPEGs to 256x256 JPEG, quality 90
raw    JPEGs to 224x224 pixels, uncompressed
large  2000x3000 and 3000x4000 JPEGs to 256: decoded at a fraction against --exact, with the worst PSNR
sizes  128, 224 and 384 at once against 384 alone
keep   nothing to change: verified and copied
repack a store shuffled anew, into tar and LMDB: megabytes per second
scan   a million files (hard links): seconds and peak memory of the parent
reuse  5 % of the files changed: --reuse against a full build
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PARTS", "SIDE", "alternate"]

SIDE, QUALITY = 256, 90
PEERS = ("ffcv", "webdataset", "mds")


def alternate(repeats: int, runs: dict[str, Callable[[], float]], unit: str, *, lower_is_better: bool = False) -> None:
    """Run each in turn, several times; print medians, spread, and the ratio of the first to the others."""
    values: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            os.sync()  # or one run pays for what the one before it has left to write
            values[name].append(run())
    medians = {name: statistics.median(found) for name, found in values.items()}
    for name, found in values.items():
        print(f"{name:30} median {medians[name]:10,.2f} {unit}   {min(found):,.2f} to {max(found):,.2f} over {repeats}")
    first, *others = medians
    for other in others:
        ratio = medians[other] / medians[first] if lower_is_better else medians[first] / medians[other]
        print(f"{first} is {ratio:.2f} of {other}")


class Build:
    """One way to build, run again and again; the rate is of the conversion alone."""

    def __init__(self, source: Path, out: Path, *options: str) -> None:
        self.source, self.out, self.options = source, out, options
        self.phases: dict[str, list[float]] = {}

    def report(self) -> dict[str, Any]:
        command = [sys.executable, "-m", "packer", "build", str(self.source), str(self.out), *self.options]
        done = subprocess.run(
            [*command, "--overwrite", "--no-resume", "--workers", "2", "--json", "--max-errors", "100%"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout)
        for name, seconds in found["phases"].items():
            self.phases.setdefault(name, []).append(seconds)
        return found

    def rate(self) -> float:
        found = self.report()
        return float(found["samples"] / found["phases"]["convert"])

    def seconds(self) -> float:
        return float(sum(self.report()["phases"].values()))

    def print_phases(self) -> None:
        medians = ", ".join(f"{name} {statistics.median(found):.2f} s" for name, found in self.phases.items())
        print(f"  {self.out.name:12} {medians}")


def peer(name: str, mode: str, source: Path, folder: Path) -> Callable[[], float]:
    def run() -> float:
        out = folder / f"{name}-{mode}"
        subprocess.run(["rm", "-rf", str(out)], check=True)
        script = Path(__file__).with_name("peers.py")
        command = [os.environ["PACKER_PEERS"], str(script), name, mode, str(source), str(out)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        return float(found["samples"] / found["seconds"])

    return run


def peers(mode: str, source: Path, folder: Path) -> dict[str, Callable[[], float]]:
    if "PACKER_PEERS" not in os.environ:
        print("PACKER_PEERS is not set: no peers (see peers.py)")
        return {}
    return {name: peer(name, mode, source, folder) for name in PEERS}


def scaled(path: str, height: int, width: int, *, crop: bool) -> Any:
    """One image with the libraries alone."""
    import torch

    pixels = simplejpeg.decode_jpeg(Path(path).read_bytes(), "RGB")
    if crop:
        factor = max(height / pixels.shape[0], width / pixels.shape[1])
        size = max(height, int(pixels.shape[0] * factor)), max(width, int(pixels.shape[1] * factor))
    else:
        size = height, width
    source: Any = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    small = torch.nn.functional.interpolate(source, size=size, mode="bilinear", antialias=True)[0].permute(1, 2, 0)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    return small[top : top + height, left : left + width].contiguous().numpy()


def jpg_chain(path: str) -> int:
    return len(simplejpeg.encode_jpeg(scaled(path, SIDE, SIDE, crop=False), QUALITY, "RGB", "420"))


def raw_chain(path: str) -> int:
    with open(f"{os.environ['BENCH_OUT']}/{os.getpid()}", "ab") as out:  # noqa: PTH123
        return out.write(scaled(path, 224, 224, crop=True))


def one_thread(out: str) -> None:
    import torch

    os.environ["BENCH_OUT"] = out
    torch.set_num_threads(1)


def bare(chain: Callable[[str], int], paths: list[str], folder: Path) -> Callable[[], float]:
    def run() -> float:
        folder.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "simplejpeg"])
        with context.Pool(2, one_thread, (str(folder),)) as pool:
            pool.map(chain, paths[:64], 16)
            started = time.perf_counter()
            pool.map(chain, paths, 64)
            seconds = time.perf_counter() - started
        subprocess.run(["rm", "-rf", str(folder)], check=True)
        return len(paths) / seconds

    return run


def files(source: Path) -> list[str]:
    return [str(path) for path in sorted(source.rglob("*")) if path.is_file()]


def build_jpg(source: Path, folder: Path, repeats: int) -> None:
    folder.mkdir()
    options = f"--resize {SIDE} --fit stretch --encode jpg".split()
    tar = Build(source, folder / "out", *options, "--size", "64MB")  # as the peers do
    lmdb = Build(source, folder / "out.lmdb", *options)
    runs = {
        "packer shard": tar.rate,
        "packer lmdb": lmdb.rate,
        "bare chain": bare(jpg_chain, files(source), folder / "x"),
    }
    alternate(repeats, runs | peers("jpg", source, folder), "images/s")
    tar.print_phases()
    lmdb.print_phases()


def build_raw(source: Path, folder: Path, repeats: int) -> None:
    folder.mkdir()
    tar = Build(source, folder / "out", *["--resize", "224", "--fit", "crop", "--encode", "raw"])
    runs = {"packer raw": tar.rate, "bare chain, written": bare(raw_chain, files(source), folder / "x")}
    alternate(repeats, runs | peers("raw", source, folder), "images/s")
    tar.print_phases()


def build_large(source: Path, folder: Path, repeats: int) -> None:
    import cv2

    import packer_reader

    for number, path in enumerate(files(source)[:600:10]):
        height, width = ((2000, 3000), (3000, 4000))[number % 2]
        inner = folder / "images" / "a"
        inner.mkdir(parents=True, exist_ok=True)
        picture: Any = cv2.resize(cv2.imread(path), (width, height), interpolation=cv2.INTER_CUBIC)  # type: ignore[arg-type]
        noise = np.random.default_rng(number).normal(0, 4, picture.shape)
        cv2.imwrite(str(inner / f"{number:03}.jpg"), (picture + noise).clip(0, 255).astype(np.uint8))
    options = ["--resize", "256", "--encode", "png"]
    fast = Build(folder / "images", folder / "fast", *options)
    exact = Build(folder / "images", folder / "exact", *options, "--exact")
    alternate(repeats, {"at a fraction": fast.rate, "--exact": exact.rate}, "images/s")
    one, other = packer_reader.open(folder / "fast"), packer_reader.open(folder / "exact")
    errors = [np.mean((one[i]["image"].astype(float) - other[i]["image"].astype(float)) ** 2) for i in range(len(one))]
    print(f"worst PSNR against the full decode: {10 * np.log10(255**2 / max(errors)):.1f} dB over {len(one)} images")


def build_sizes(source: Path, folder: Path, repeats: int) -> None:
    folder.mkdir()
    many = Build(
        source, folder / "many", *["--resize", "128", "--resize", "224", "--resize", "384", "--fit", "stretch"]
    )
    one = Build(source, folder / "one", *["--resize", "384", "--fit", "stretch"])
    alternate(repeats, {"three sizes": many.rate, "384 alone": one.rate}, "images/s")


def build_keep(source: Path, folder: Path, repeats: int) -> None:
    folder.mkdir()
    alternate(repeats, {"kept as they are": Build(source, folder / "out").rate}, "images/s")


def build_repack(source: Path, folder: Path, repeats: int) -> None:
    folder.mkdir()
    stored = float(Build(source, folder / "store").report()["bytes"]) / 1e6
    ways = {name: Build(folder / "store", folder / name, "--seed", "7") for name in ("tar", "out.lmdb")}

    def rate(way: Build) -> float:
        return stored / float(way.report()["phases"]["convert"])

    alternate(repeats, {f"to {name}": partial(rate, way) for name, way in ways.items()}, "MB/s")
    for way in ways.values():
        way.print_phases()


def build_scan(source: Path, folder: Path, repeats: int) -> None:
    original = Path(files(source)[0])
    for number in range(1000):
        inner = folder / "million" / f"{number:04}"
        inner.mkdir(parents=True)
        first = inner / "000.jpg"
        first.write_bytes(original.read_bytes()[:100])
        for other in range(1, 1000):
            os.link(first, inner / f"{other:03}.jpg")
    program = (
        "import resource, sys, tempfile, time\n"
        "from pathlib import Path\n"
        "from packer.job import Job\n"
        "from packer.scan import scan\n"
        "from packer.sources.imagefolder import ImageFolder\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    started = time.perf_counter()\n"
        "    found = scan(ImageFolder((sys.argv[1],)), Path(folder) / 'refs', Job(runner='serial'))\n"
        "    print(time.perf_counter() - started)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, found.found)\n"
    )

    def run() -> float:
        command = [sys.executable, "-c", program, str(folder / "million")]
        seconds, megabytes, found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        print(f"  {int(found):,} files in {float(seconds):.2f} s, peak {float(megabytes):.0f} MB")
        return float(seconds)

    alternate(repeats, {"scan": run}, "s", lower_is_better=True)


def build_reuse(source: Path, folder: Path, repeats: int) -> None:
    folder.mkdir()
    copy, options = folder / "images", ["--resize", "256", "--fit", "crop", "--size", "64MB"]  # several shards
    for part in range(3):  # --reuse is for large sets: the start of workers and the last shard should not decide
        for name in sorted(source.iterdir()):
            shutil.copytree(name, copy / f"{name.name}-{part}")
    Build(copy, folder / "old", *options).report()
    for path in files(copy)[::20]:
        data = Path(path).read_bytes()
        Path(path).write_bytes(data + b" ")
    full = Build(copy, folder / "full", *options)
    reused = Build(copy, folder / "reused", *options, "--reuse", str(folder / "old"))
    alternate(repeats, {"--reuse": reused.seconds, "full build": full.seconds}, "s", lower_is_better=True)
    share = statistics.median(reused.phases["convert"]) / statistics.median(full.phases["convert"])
    print(f"--reuse converts in {share:.3f} of the time, without start and sync")
    for each in (full, reused):
        each.print_phases()
    same = subprocess.run(["diff", "-r", str(folder / "full"), str(folder / "reused")], check=False).returncode == 0
    print(f"same bytes: {same}")


PARTS: dict[str, Callable[[Path, Path, int], None]] = {
    "jpg": build_jpg,
    "raw": build_raw,
    "large": build_large,
    "sizes": build_sizes,
    "keep": build_keep,
    "repack": build_repack,
    "scan": build_scan,
    "reuse": build_reuse,
}
