"""Promises about memory: said before a loop runs, warmed, or kept decoded once for all processes of a machine."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader

from packer import Job, Recipe, build
from packer_reader import HorizontalFlip, RandomResizedCrop, StreamDataset
from packer_reader.errors import BatchError, DamageError, StoreError, UsageError
from packer_reader.machine import free_memory
from tests.conftest import make_serials
from tests.reader.test_scale import blown_up

if TYPE_CHECKING:
    from collections.abc import Iterator

MEASURED = """
import json, os, sys, time
import torch
from torch.utils.data import DataLoader, IterableDataset
from packer_reader import RandomResizedCrop, StreamDataset, loader

class Empty(IterableDataset):
    def __iter__(self):
        return iter([torch.zeros(1)] * 10)

def bytes_of(pid):
    lines = open(f"/proc/{pid}/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss_Anon", "Pss_Shmem")))

def loop(make, ds, workers, prefetch, steps, **options):
    options |= {"prefetch_factor": prefetch, "persistent_workers": True} if workers else {}
    batches, peak = make(ds, num_workers=workers, **options), 0
    for number, batch in zip(range(steps), batches):
        found, same = 0, 0
        while same < 5:  # until the workers have read all that they read ahead
            running = getattr(batches._iterator, "_workers", [])
            now = bytes_of(os.getpid()) + sum(bytes_of(worker.pid) for worker in running)
            same = same + 1 if now <= found * 1.002 else 0
            found = max(found, now)
            time.sleep(0.02)
        peak = max(peak, found)
    return peak

if __name__ == "__main__":
    store, workers, prefetch, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    empty = loop(DataLoader, Empty(), workers, prefetch, 6, batch_size=None)
    options = {"crop": RandomResizedCrop(256)} if kind == "crop" else {"seq_len": 1 << 14} if kind == "seq_len" else {}
    if kind == "loader":
        ds = StreamDataset(store, batch_size=32)
        together = ds.sent_together(prefetch)
        assert together == 4
        took = loop(loader, ds, workers, prefetch, workers * (prefetch + 1) * together)
        said = ds.memory(workers, prefetch, together)
    else:
        ds = StreamDataset(store, batch_size=64, **options)
        took, said = loop(DataLoader, ds, workers, prefetch, 6, batch_size=None), ds.memory(workers, prefetch)
    print(json.dumps([took - empty, said]))
"""


def measured(store: Path, workers: int, prefetch: int, kind: str, folder: Path) -> tuple[int, int]:
    """What a loop took above one over nothing, and what was said; of `kind` the data set's options."""
    (folder / "loop.py").write_text(MEASURED)
    command = [sys.executable, str(folder / "loop.py"), str(store), str(workers), str(prefetch), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    took, said = json.loads(done.stdout)
    return took, said


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Batches of 64 have 12.6 MB."""
    folder = tmp_path_factory.mktemp("large")
    make_serials(folder / "images", 1000)
    build(str(folder / "images"), str(folder / "o"), Recipe(resize=(256, 256), fit="stretch", encode="raw"), Job())
    return folder / "o"


# A single worker may be a batch ahead of this: a loop holds the old batch until it has the new one.
@pytest.mark.parametrize("workers", [(0, 2, ""), (2, 2, "crop"), (2, 4, "")])
def test_memory_is_what_a_loop_takes(workers: tuple[int, int, str], large: Path, tmp_path: Path) -> None:
    took, said = measured(large, *workers, tmp_path)
    assert abs(took - said) < 0.1 * said, (took, said)


def masked_arrays(store: Path, options: str) -> str:
    """What of numpy's masked arrays reading a store loads: 20 ms and 6 MB in each worker, if anything."""
    program = (
        "import sys; from packer_reader import RandomResizedCrop, StreamDataset; "
        f"assert list(StreamDataset({str(store)!r}, batch_size=8, {options})); "
        "print([name for name in sys.modules if name.startswith('numpy.ma.')])"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("options", ["", "crop=RandomResizedCrop(9)", 'decode="bytes"'])
def test_images_load_no_masked_arrays(options: str, store: Path) -> None:
    assert masked_arrays(store, options) == "[]"


def test_memory_counts_lists_and_single_samples(tar_store: Path, large: Path) -> None:
    one = StreamDataset(large, batch_size=64, decode="pil").memory(0)
    assert one == pytest.approx(StreamDataset(large, batch_size=64).memory(0), rel=0.01)
    assert StreamDataset(large, batch_size=64, decode="bytes").memory(0) == pytest.approx(one, rel=0.01)
    assert StreamDataset(large).memory(1) < StreamDataset(large).memory(2)
    with pytest.raises(UsageError, match="num_workers is -1"):
        StreamDataset(tar_store, batch_size=2).memory(-1)


def test_warm_reads_the_store_into_memory(large: Path) -> None:
    data = large / "train-000000.tar"
    with data.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert resident(data) < 0.1
    StreamDataset(large, batch_size=8, warm=True)
    assert resident(data) > 0.99


def resident(path: Path) -> float:
    """Share of a file's pages that are in memory, by `fincore`."""
    done = subprocess.run(["fincore", "--bytes", "--noheadings", "-o", "RES", path], capture_output=True, check=True)
    return int(done.stdout) / path.stat().st_size


def test_ranks_share_the_warming(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert len(StreamDataset(large, batch_size=8, warm=True)) == 125


@pytest.fixture
def own_notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder, so that tests do not find each other's caches; the names of torch's sockets in it must not
    be longer than 107 bytes, or batches are lost."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(folder)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"flip": HorizontalFlip()},
    {"crop": RandomResizedCrop(9)},
    {"crop": {"a": RandomResizedCrop(9), "b": RandomResizedCrop(5)}, "flip": HorizontalFlip()},
    {"fields": ["image"]},
    {"decode": "pil"},
]


@pytest.mark.parametrize("start", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow), None])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.usefixtures("own_notes")
def test_decoded_images_are_those_of_the_store(options: dict[str, Any], start: str | None, store: Path) -> None:
    if start in {"forkserver", "spawn"} and options is not OPTIONS[2]:
        pytest.skip("one is enough where processes are dear")
    plain = StreamDataset(store, batch_size=8, **options)
    cached = StreamDataset(store, batch_size=8, cache="decoded", threads=2, **options)
    for _ in range(2):
        again = DataLoader(cached, batch_size=None, num_workers=2 if start else 0, multiprocessing_context=start)
        for one, other in zip(plain, again, strict=True):
            assert list(one) == list(other)
            for name in one:
                if isinstance(one[name], list):
                    assert [image.tobytes() for image in one[name]] == [image.tobytes() for image in other[name]]
                else:
                    assert torch.equal(one[name], other[name])


SECOND = """
import os, sys
from packer_reader import StreamDataset
ds = StreamDataset(sys.argv[1], batch_size=8, cache="decoded")
print(os.fstat(ds._reader._cached["image"]._file).st_ino)
print(sum(int(batch["image"].sum()) for batch in ds), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("store", ["lmdb", pytest.param("tar", marks=pytest.mark.slow)], indirect=True)
def test_processes_of_a_machine_share_one_cache(store: Path, own_notes: Path) -> None:
    def other() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SECOND, str(store)]
        environment = {**os.environ, "TMPDIR": str(own_notes)}
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    total = sum(int(batch["image"].sum()) for batch in StreamDataset(store, batch_size=8))
    with other() as first, other() as second:  # at the same moment: one decodes, the other one waits
        assert first.stdout is not None
        assert second.stdout is not None
        found = [[output.readline().split()[-1], int(output.readline())] for output in (first.stdout, second.stdout)]
        first.send_signal(signal.SIGKILL)
        first.wait()
        with other() as third:  # found with the one that is left
            assert third.communicate("")[0].split()[0] == found[0][0]
        second.send_signal(signal.SIGKILL)
    assert found[0] == found[1]
    assert found[0][1] == total
    with other() as fourth:  # all who had it are gone: made anew
        assert fourth.communicate("")[0].split()[-1] == str(total)
    assert [name for name in os.listdir("/dev/shm") if "packer" in name] == []


@pytest.mark.usefixtures("own_notes")
def test_caches_that_cannot_be_are_refused(tar_store: Path, photos: Path, tmp_path: Path) -> None:
    def refused(error: type[Exception], message: str, path: Path = tar_store, **options: Any) -> None:
        with pytest.raises(error, match=message):
            StreamDataset(path, batch_size=2, **{"cache": "decoded", **options})

    refused(UsageError, "cache is 'raw', it must be 'decoded' or None", cache="raw")
    refused(UsageError, 'decode="bytes" gives none', decode="bytes")
    refused(UsageError, "none can be skipped", on_error="skip")
    build(str(photos), str(tmp_path / "o"), Recipe(), Job(workers=1))
    refused(BatchError, "images of one size", tmp_path / "o", crop=RandomResizedCrop(8))


def test_free_memory_is_the_least_limit(tmp_path: Path) -> None:
    for name, text in (("memory.max", "5000"), ("memory.current", "4000"), ("memory.stat", "anon 1\nfile 1500\n")):
        (tmp_path / name).write_text(text)
    assert free_memory(cgroups=[tmp_path]) == 2500
    assert free_memory(cgroups=[]) > 1 << 20


@pytest.mark.usefixtures("own_notes")
def test_what_does_not_fit_is_refused_with_figures(tmp_path: Path) -> None:
    make_serials(tmp_path / "images", 20)
    build(str(tmp_path / "images"), str(tmp_path / "o"), Recipe(), Job(workers=1))
    blown_up(tmp_path / "o")
    with pytest.raises(UsageError, match=r'cache="decoded" needs 768\.0 GB for 1,000,000,000 images, .* are free'):
        StreamDataset(tmp_path / "o", batch_size=2, cache="decoded")
    with pytest.raises(UsageError, match=r"warm=True: .* has .*B, .*B of memory are free"):
        StreamDataset(tmp_path / "o", batch_size=2, warm=True)


def test_a_folder_that_cannot_be_written_is_one_sentence(tar_store: Path, own_notes: Path) -> None:
    assert tempfile.gettempdir() == str(own_notes)
    own_notes.rmdir()
    with pytest.raises(UsageError, match="cannot be used, or there is no memory .*: set TMPDIR"):
        StreamDataset(tar_store, batch_size=2, cache="decoded")


@pytest.mark.usefixtures("own_notes")
def test_a_damaged_image_is_named_and_nothing_is_kept(tmp_path: Path) -> None:
    make_serials(tmp_path / "images", 20)
    build(str(tmp_path / "images"), str(tmp_path / "o"), Recipe(), Job(workers=1))
    data = bytearray((tmp_path / "o" / "train-000000.tar").read_bytes())
    data[data.index(b"IDAT") + 9] ^= 1
    (tmp_path / "o" / "train-000000.tar").write_bytes(data)
    for _ in range(2):
        with pytest.raises(DamageError, match="is damaged at key"):
            StreamDataset(tmp_path / "o", batch_size=2, cache="decoded")


def test_a_pickle_of_a_process_that_has_ended_is_refused(tar_store: Path, own_notes: Path) -> None:
    program = (
        "import os, pickle, sys; from packer_reader import StreamDataset; "
        "sys.stdout.buffer.write(pickle.dumps(StreamDataset(sys.argv[1], batch_size=8, cache='decoded')))"
    )
    environment = {**os.environ, "TMPDIR": str(own_notes)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tar_store)], check=True, capture_output=True, env=environment
    )
    with pytest.raises(StoreError, match=r"are gone with it: make the StreamDataset anew"):
        pickle.loads(done.stdout)
