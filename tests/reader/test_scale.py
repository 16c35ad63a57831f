"""A thousand million samples: opening a store costs what its shard table costs, not what its samples cost."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from packer import Job, Recipe, build
from packer_reader.format.columns import COLUMN_MAGIC, ArraySpec, frame_bytes, frame_header, padding, parse_frame
from packer_reader.format.manifest import manifest_bytes, parse_manifest
from packer_reader.format.names import SHARDS, column_file
from tests.conftest import make_serials

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES, COUNT = 10**9, 100_000

OPEN = """
import resource, sys, time
from packer_reader import StreamDataset, open as open_store
import numpy as np
before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
ds = StreamDataset(sys.argv[1], batch_size=256, shuffle_buffer=100_000, seed=1, rank=3, world_size=1000)
batches = ds.course.batches_to_read(ds.clock.begin())
numbers, _ = batches.batch(len(batches) // 2)
seconds = time.perf_counter() - begun
assert len(ds) == 10**9 // 256_000 + 1, len(ds)
assert len(np.unique(numbers)) == 256 and numbers.max() < 10**9
print(seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)
"""


def blown_up(folder: Path) -> None:
    """Let a store say that it has 10^9 samples: its files get the right sizes, and holes for contents."""
    manifest = parse_manifest((folder / "manifest.json").read_bytes())
    files = dict(manifest.files)
    for name, kind in manifest.columns.items():
        file = column_file(name)
        frame = parse_frame(file, COLUMN_MAGIC, (folder / file).read_bytes())
        if kind == "string":
            specs = [ArraySpec("offsets", "<u8", (SAMPLES + 1,)), ArraySpec("bytes", "|u1", (0,))]
        else:
            specs = [
                ArraySpec(key, array.dtype.str, (SAMPLES, *array.shape[1:])) for key, array in frame.arrays.items()
            ]
        header = frame_header(COLUMN_MAGIC, frame.meta, specs)
        size = len(header) + specs[0].nbytes + (padding(specs[0].nbytes) if len(specs) > 1 else 0)
        with (folder / file).open("wb") as out:
            out.write(header)
            out.truncate(size)
        files[file] = {**files[file], "bytes": size}
    old = parse_frame(SHARDS, COLUMN_MAGIC, (folder / SHARDS).read_bytes())
    table = {name: np.repeat(values[:1], COUNT, axis=0) for name, values in old.arrays.items()}
    table["samples"] = np.full(COUNT, SAMPLES // COUNT, "<u8")
    size = (folder / SHARDS).write_bytes(frame_bytes(COLUMN_MAGIC, old.meta, table))
    files[SHARDS] = {**files[SHARDS], "bytes": size}
    counts = {"found": SAMPLES, "written": SAMPLES, "skipped": 0}
    large = replace(manifest, samples=SAMPLES, shards=COUNT, files=files, counts=counts)
    (folder / "manifest.json").write_bytes(manifest_bytes(large))


def test_a_store_of_a_thousand_million_samples_opens_in_150_mb(tmp_path: Path) -> None:
    make_serials(tmp_path / "images", 20)
    build(str(tmp_path / "images"), str(tmp_path / "o"), Recipe(), Job(workers=1))
    blown_up(tmp_path / "o")
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(tmp_path / "o")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seconds, more = done.stdout.split()
    assert float(more) < 150e6, f"{more} bytes, {seconds} s"
