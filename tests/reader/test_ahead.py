"""Reading ahead: what comes soon is asked for, nothing that is in memory, and nothing beside it."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

import packer_reader
from packer import Job, Recipe, build
from packer_reader import StreamDataset
from packer_reader.errors import FormatError
from packer_reader.machine import read_ahead
from packer_reader.stores import ahead, lmdb
from tests.conftest import make_serials

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES, SIDE = 60, 128
PAGES = SAMPLES * SIDE * SIDE * 3 // 4096


@pytest.fixture(scope="module", params=["tar", "lmdb"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 12 pages a sample, in several shards."""
    folder, random = tmp_path_factory.mktemp("large"), np.random.default_rng(0)
    (folder / "src").mkdir()
    for number in range(SAMPLES):
        Image.fromarray(random.integers(0, 256, (SIDE, SIDE, 3), np.uint8)).save(folder / "src" / f"{number:03}.png")
    out = folder / ("o.lmdb" if request.param == "lmdb" else "o")
    build(str(folder / "src"), str(out), Recipe(encode="raw", shard_bytes=10**6), Job())
    return out


def drop(path: Path) -> None:
    """From the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


READ = """
import json, os, resource, sys
import numpy as np
import packer_reader
from packer_reader import MapDataset, StreamDataset

def shuffled(path):
    for batch in StreamDataset(path, batch_size=8, shuffle_buffer=24, block=4): pass

def stored(path):
    for batch in StreamDataset(path, batch_size=8, shuffle_buffer=0): pass

def single(path):
    for sample in StreamDataset(path, batch_size=None, shuffle_buffer=24): pass

def picked(path):
    data, order = MapDataset(path), np.random.default_rng(0).permutation(len(MapDataset(path))).tolist()
    for start in range(0, len(order), 8): data.__getitems__(order[start:start + 8])

def opened(path):
    for sample in packer_reader.open(path): pass

def followed(path):
    store = packer_reader.open(path)
    for number in range(len(store)): store[number]

def one(path):
    store = packer_reader.open(path)
    for number in range(0, len(store), 7): store[number]

def counted(function, path):
    for file in [os.path.join(path, name) for name in os.listdir(path) if name.endswith((".tar", ".mdb"))]:
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    fetched = lambda: int(open("/proc/self/io").read().split("\\nread_bytes: ")[1].split()[0])
    faults, before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt, fetched()
    function(path)
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults, fetched() - before

small, *copies = sys.argv[1:]
for function in (shuffled, stored, single, picked, opened, followed, one):
    function(small)  # whatever is loaded for it
functions = (shuffled, stored, single, picked, opened, followed, one)
print(json.dumps({f.__name__: counted(f, path) for f, path in zip(functions, copies, strict=True)}))
"""


def test_what_is_read_was_asked_for(large: Path, tmp_path: Path, tar_store: Path) -> None:
    copies = [shutil.copytree(large, tmp_path / str(number)) for number in range(7)]
    asked = [sys.executable, "-c", READ, str(tar_store), *map(str, copies)]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    found: dict[str, tuple[int, int]] = json.loads(done.stdout)
    if not any(fetched for _, fetched in found.values()):
        pytest.skip("this file system says nothing of what is fetched")
    for way, (faults, fetched) in found.items():
        samples = -(-SAMPLES // 7) if way == "one" else SAMPLES
        assert fetched >= samples * SIDE * SIDE * 3, way
        # Each page by itself would be as many as there are pages; of single samples nobody knows beforehand.
        assert way == "one" or faults < PAGES / 3, way
    assert found["one"][1] < SAMPLES * SIDE * SIDE * 3 / 2  # not what lies around a sample


def test_it_says_whether_there_is_something_to_fetch(large: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(large, tmp_path / large.name)
    for path in copy.iterdir():
        if path.is_file():
            drop(path)
    store, numbers, before = packer_reader.open(copy), np.arange(SAMPLES), ahead.fetched()
    first = store.announce(numbers, [0])
    if ahead.fetched() == before:
        pytest.skip("this file system says nothing of what is fetched")
    assert first
    store.read(numbers, [0])  # now all is in memory
    assert not store.announce(numbers, [0])


@dataclass
class System:
    """What the system counts, in place of the real numbers, which other parts of this process move as well."""

    fetched: int = 0
    faults: int = 0


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    counts = System()
    monkeypatch.setattr(ahead, "fetched", lambda: counts.fetched)
    monkeypatch.setattr(ahead, "_faults", lambda: counts.faults)
    return counts


class Asked(list[list[int]]):
    """Takes numbers that are asked for; says whether they are cold."""

    cold = False

    def __call__(self, numbers: Any) -> bool:
        self.append(numbers.tolist())
        return self.cold


BATCH, NEAR = np.array([5, 3]), [np.arange(100)]


def test_it_rests_as_long_as_nothing_is_fetched(system: System) -> None:
    asked = Asked()
    reading = ahead.ReadAhead(asked)
    for _ in range(33):
        reading.bring(BATCH, NEAR)
    assert [len(numbers) for numbers in asked if len(numbers) > 4] == [100] * 3
    system.fetched += 1
    reading.bring(BATCH, NEAR)
    assert len(asked[-1]) == 100


@pytest.mark.usefixtures("system")
def test_it_asks_again_once_there_is_something_to_fetch() -> None:
    asked = Asked()
    reading = ahead.ReadAhead(asked)
    reading.bring(BATCH, NEAR)
    reading.bring(BATCH, NEAR)
    asked.cold = True
    reading.bring(BATCH, NEAR)
    assert [len(numbers) for numbers in asked] == [100, 4, 4, 100]


def test_a_batch_is_asked_for_once_more_where_pages_were_missing(system: System) -> None:
    asked = Asked()
    reading = ahead.ReadAhead(asked)
    system.faults += 5
    reading.bring(BATCH, [])
    assert asked == []
    system.faults += 100
    for _ in range(16):
        reading.bring(BATCH, [])
    assert asked == [[3, 5]] * 16
    reading.bring(BATCH, [])
    assert len(asked) == 16


def test_it_does_not_rest_where_pages_were_missing(system: System) -> None:
    asked = Asked()
    reading = ahead.ReadAhead(asked)
    reading.bring(BATCH, NEAR)
    system.faults += 100
    reading.bring(BATCH, [])
    asked.clear()
    reading.bring(BATCH, NEAR)
    assert [len(numbers) for numbers in asked] == [100, 2]


def test_the_sums_of_the_system_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(10**6))
    drop(file)
    fetched, faults = ahead.fetched() or 0, ahead._faults()
    with file.open("rb") as data, mmap.mmap(data.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_RANDOM)
        sum(mapped[:: mmap.PAGESIZE])
    if ahead.fetched() in {None, fetched}:
        pytest.skip("this file system keeps everything in memory")
    assert (ahead.fetched() or 0) >= fetched + 10**6 // 512
    assert ahead._faults() >= faults + 10**6 // 4096 // 64  # a fault may bring some pages


@pytest.mark.parametrize("bit", [6, 31, 62])
@pytest.mark.parametrize("name", ["value", "offset", "size"])
def test_a_changed_index_harms_nobody_else(name: str, bit: int, tmp_path: Path, large: Path) -> None:
    column = getattr(packer_reader.open(large).index(0), name)
    if column is None or bit >= 8 * column.dtype.itemsize:
        return
    store = shutil.copytree(large, tmp_path / large.name)
    index = min(store.glob("*.index"))
    content = bytearray(index.read_bytes())
    content[content.index(column.tobytes()) + 4 * column.dtype.itemsize + bit // 8] ^= 1 << bit % 8
    index.write_bytes(content)
    changed = packer_reader.open(store)
    changed.announce(np.arange(7), [0])
    try:
        assert len(changed[0]["image"]) == SIDE
    except FormatError:  # tar's indexes are compared with the shard as they are opened
        assert large.suffix != ".lmdb"


@pytest.mark.parametrize("sizes", [(16, 16, 1), (16, 128, 60), (64, 65, 200)])
@pytest.mark.parametrize("stretch", [1024, 16])
def test_records_of_lmdb_begin_where_they_are_looked_for(
    stretch: int, sizes: tuple[int, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb, "_STRETCH", stretch)
    least, most, count = sizes
    random = np.random.default_rng(1)
    (tmp_path / "src").mkdir()
    for number in range(count):
        side = int(random.integers(least, most + 1))
        Image.fromarray(random.integers(0, 256, (side, side, 3), np.uint8)).save(tmp_path / "src" / f"{number:03}.png")
    build(str(tmp_path / "src"), str(tmp_path / "o.lmdb"), Recipe(), Job())
    store = packer_reader.open(tmp_path / "o.lmdb")
    assert isinstance(store, lmdb.LmdbStore)
    for shard in range(store.manifest.shards):
        rows = np.arange(len(store.index(shard)))
        real, guessed = store.addresses(shard, rows)[1], store.starts(shard, rows)[1]
        assert np.abs(real - guessed).max() <= store.slack


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cold_store_is_read_whole(workers: int, tmp_path: Path) -> None:
    from torch.utils.data import DataLoader

    build(str(make_serials(tmp_path / "src", 200)), str(tmp_path / "o"), Recipe(encode="raw", shard_bytes=10**5), Job())
    for path in (tmp_path / "o").glob("*.tar"):
        drop(path)
    ds = StreamDataset(tmp_path / "o", batch_size=16, shuffle_buffer=40, with_id=True)
    assert sorted(n for b in DataLoader(ds, batch_size=None, num_workers=workers) for n in b["id"].tolist()) == list(
        range(200)
    )


@pytest.mark.parametrize(
    ("said", "step"), [("128", 1 << 17), ("8192", 1 << 19), ("256", 1 << 18), ("0", 1 << 17), (None, 1 << 17)]
)
def test_no_more_is_asked_for_at_a_time_than_the_disk_reads_ahead(
    said: str | None, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = os.stat(tmp_path).st_dev
    disk = tmp_path / "devices" / "disk"
    (disk / "part").mkdir(parents=True)
    (tmp_path / "devices" / f"{os.major(device)}:{os.minor(device)}").symlink_to(disk / "part")
    if said is not None:
        (disk / "queue").mkdir()
        (disk / "queue" / "read_ahead_kb").write_text(f"{said}\n")
    found = read_ahead(tmp_path, tmp_path / "devices")
    assert found == (None if said is None else int(said) << 10)
    monkeypatch.setattr(ahead, "read_ahead", lambda _: found)
    assert ahead.step_of(tmp_path) == step
