"""Benchmarks. Each alternates the product with the bare libraries it is made of, and reports the ratio of medians.

help   start of `packer --help`
build  the builder: see bench_build.py for its parts (--part jpg, raw, large, sizes, keep, repack, scan, reuse, text)
read   the reader: see bench_read.py for its parts (--part jpg, raw, crop, tokens, tools, cold)
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).parent))

from bench_build import PARTS, alternate
from bench_cold import read_cold
from bench_read import READ_PARTS
from bench_text import build_text, read_tokens
from bench_tools import compare_tools

BUILDING = PARTS | {"text": build_text}
READING = READ_PARTS | {"tokens": read_tokens, "tools": compare_tools, "cold": read_cold}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["help", "build", "read"])
    parser.add_argument("--part", action="append", choices=sorted({*BUILDING, *READING}), help="jpg when left out")
    parser.add_argument("--images", help="a folder of JPEGs; photographs are cut up when left out")
    parser.add_argument("--count", type=int, default=3000, help="images to make")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.what == "help":
        bench_help(arguments)
        return
    parts = BUILDING if arguments.what == "build" else READING
    with tempfile.TemporaryDirectory() as name:
        about_text = {"text", "tokens"} >= set(arguments.part or ["jpg"])
        source = Path(name) if about_text else images(arguments, Path(name))
        for part in arguments.part or ["jpg"]:
            if part not in parts:
                parser.error(f"{arguments.what} has no part {part}: it has {', '.join(parts)}")
            folder = Path(name) / part
            if arguments.what == "read":
                folder.mkdir()
            parts[part](source, folder, arguments.repeats)


if __name__ == "__main__":
    main()
