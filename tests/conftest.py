"""Fixtures: small data sets made from numbers, stores built from them, and the command line as a function."""

from __future__ import annotations

import gc
import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import hypothesis
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from packer import Job, Recipe, build
from packer.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

hypothesis.settings.register_profile("default", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.register_profile("slow", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

MTIME_NS = 1_600_000_000_000_000_000


def serial_image(number: int, side: int = 16) -> Image.Image:
    """A flat picture that carries its number: R = n % 256, G = n // 256."""
    pixels = np.empty((side, side, 3), np.uint8)
    pixels[...] = (number % 256, number // 256, 77)
    return Image.fromarray(pixels)


def serial_of(pixels: np.ndarray) -> int:
    """The number that a flat picture (h, w, c) carries."""
    return int(pixels[0, 0, 0]) + 256 * int(pixels[0, 0, 1])


def make_serials(root: Path, count: int, classes: str = "abc", start: int = 0) -> Path:
    """A folder of numbered PNGs, dealt to classes; times are fixed."""
    for number in range(start, start + count):
        folder = root / classes[number % len(classes)] if classes else root
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{number:05d}.png"
        serial_image(number).save(path)
        os.utime(path, ns=(MTIME_NS, MTIME_NS))
    return root


def make_photos(root: Path, count: int, seed: int = 0) -> Path:
    """A folder of JPEGs with some structure, of different sizes, in two classes."""
    random = np.random.default_rng(seed)
    for number in range(count):
        folder = root / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        height, width = (int(n) for n in random.integers(40, 90, 2))
        coarse = random.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(
            folder / f"{number:04d}.jpg", quality=90
        )
    return root


@dataclass
class Result:
    """What a command did."""

    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run `packer` in this process; fails on a traceback, and shows the output when an assertion fails."""

    def invoke(*arguments: object, exit_code: int = 0) -> Result:
        done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == exit_code, f"exit {done.exit_code}\n{done.stdout}\n{done.stderr}"
        return Result(done.exit_code, done.stdout, done.stderr)

    return invoke


@pytest.fixture
def careless_libraries() -> Iterator[None]:
    """For tests of what other libraries read: these use deprecated names, and leave files open.

    What they left is collected here, since it would fail whichever test happens to run when Python gets to it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        gc.collect()


@pytest.fixture(scope="session")
def serials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 numbered PNGs in classes a, b, c."""
    return make_serials(tmp_path_factory.mktemp("serials") / "src", 60)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 JPEGs of different sizes in classes cat and dog."""
    return make_photos(tmp_path_factory.mktemp("photos") / "src", 24)


@pytest.fixture(scope="session")
def tar_store(serials: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The numbered pictures in several small shards."""
    out = tmp_path_factory.mktemp("tar") / "out"
    build(str(serials), str(out), Recipe(shard_bytes=30_000), Job(workers=1))
    return out


@pytest.fixture(scope="session")
def lmdb_store(serials: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The numbered pictures in an LMDB file."""
    out = tmp_path_factory.mktemp("lmdb") / "out.lmdb"
    build(str(serials), str(out), Recipe(container="lmdb"), Job(workers=1))
    return out


@pytest.fixture(params=["tar", "lmdb"])
def store(request: pytest.FixtureRequest) -> Path:
    """The numbered pictures in either container."""
    path: Path = request.getfixturevalue(f"{request.param}_store")
    return path
