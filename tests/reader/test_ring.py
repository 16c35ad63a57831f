"""Batches in reused shared memory: never overwritten while anyone holds them, and nothing is left behind."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from packer import Job, Recipe, build
from packer_reader import StreamDataset, loader
from packer_reader.errors import BatchError, DamageError, StoreError, UsageError
from packer_reader.ring import SLOTS, Ring, Slot, places_for
from tests.conftest import make_serials


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 numbered pictures, uncompressed."""
    folder = tmp_path_factory.mktemp("ring")
    build(str(make_serials(folder / "src", 300)), str(folder / "out"), Recipe(encode="raw"), Job(workers=1))
    return folder / "out"


def stream(path: Path, **options: Any) -> StreamDataset:
    return StreamDataset(path, **({"batch_size": 8, "shuffle_buffer": 50, "with_id": True} | options))


def whole(batch: Any, store: Any) -> bool:
    """Whether a batch holds what its ids say: pictures are flat and carry the number of their source."""
    names = [store.source(number) for number in batch["id"].tolist()]
    serials = torch.tensor([int(name[2:-4]) for name in names])
    pixels = batch["image"].long()
    expected = torch.stack([serials % 256, serials // 256, torch.full_like(serials, 77)], 1)
    return bool((pixels == expected[:, :, None, None]).all()) and bool((batch["label"] == serials % 3).all())


def mapped() -> int:
    """Slots that this process has mapped."""
    return Path("/proc/self/maps").read_text().count("memfd:packer")


def in_ring(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in a slot."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(number, 16) for number in line.split()[0].split("-"))
        if low <= tensor.data_ptr() < high:
            return "memfd:packer" in line
    return False


KEPT: list[Any] = [
    lambda b: b,
    lambda b: b["image"],
    lambda b: b["image"][3:5],
    lambda b: b["image"].numpy(),
    lambda b: b["image"].permute(0, 2, 3, 1).numpy()[1:, ::2],
    lambda b: b["label"],
    lambda b: b["image"].view(torch.int8).untyped_storage(),
]


def content(kept: Any) -> bytes:
    """All bytes of what is kept."""
    if isinstance(kept, dict):
        return b"".join(content(value) for value in kept.values())
    if isinstance(kept, torch.UntypedStorage):
        return bytes(kept.tolist())  # type: ignore[no-untyped-call]
    return np.ascontiguousarray(kept).tobytes()


def fork_and_drop(kept: list[Any]) -> None:
    """A child that drops its copies of everything, runs its finalizers, and ends."""
    child = os.fork()
    if child == 0:
        kept.clear()
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("workers", "start"),
    [
        (0, None),
        (2, "fork"),
        pytest.param(2, "forkserver", marks=pytest.mark.slow),
        pytest.param(1, "spawn", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_nothing_that_is_held_is_overwritten(workers: int, start: str | None, seed: int, raw: Path) -> None:
    choose = random.Random(seed)
    ds = stream(raw, threads=2)
    batches = DataLoader(ds, batch_size=None, num_workers=workers, multiprocessing_context=start)
    kept, reused = list[tuple[int, Any, bytes]](), set[int]()
    for step, batch in enumerate(b for _ in range(4) for b in batches):
        assert whole(batch, ds.store)
        reused.add(batch["image"].data_ptr())
        if choose.random() < 0.5:
            held = choose.choice(KEPT)(batch)
            kept.append((step + choose.choice((1, 3, 20, 60)), held, content(held)))
        del batch
        if choose.random() < 0.1:
            fork_and_drop([held for _, held, _ in kept])
        assert all(content(held) == before for _, held, before in kept)
        kept = [entry for entry in kept if entry[0] > step]
    assert len(reused) < 4 * 38 * 0.8


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_lie_in_slots_whatever_the_loader(workers: int, raw: Path) -> None:
    for make in (loader, lambda ds, **o: DataLoader(ds, batch_size=None, **o)):
        for batch in make(stream(raw, pad=True), num_workers=workers):
            assert all(in_ring(batch[name]) for name in ("image", "label", "id", "valid"))


@pytest.mark.parametrize("workers", [0, 2])
def test_more_batches_than_slots_may_be_held(workers: int, raw: Path) -> None:
    ds = stream(raw, batch_size=4)
    held = list(DataLoader(ds, batch_size=None, num_workers=workers))
    assert len(held) == 75 > 4 * SLOTS
    assert all(whole(batch, ds.store) for batch in held)
    assert len({batch["image"].data_ptr() for batch in held}) == 75


def test_the_plain_transport_gives_the_same(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [batch["image"].clone() for batch in DataLoader(stream(store, transport="plain"), batch_size=None)]
    ring = [batch["image"].clone() for batch in DataLoader(stream(store), batch_size=None, num_workers=2)]
    monkeypatch.setattr(Ring, "works", staticmethod(lambda: False))
    fallback = list(DataLoader(stream(store), batch_size=None, num_workers=2))
    assert not any(in_ring(batch["image"]) for batch in fallback)
    for one, other, third in zip(plain, ring, fallback, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third["image"])
        assert one.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(UsageError, match="transport is 'x', it must be 'ring' or 'plain'"):
        stream(store, transport="x")


def first_two(batch: Any) -> dict[str, Any]:
    return {"image": batch["image"][:2], "names": sorted(batch), "count": len(batch)}


def as_it_is(batch: Any) -> Any:
    assert "image" in batch
    return batch


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_function_sees_a_batch(workers: int, raw: Path) -> None:
    ds = stream(raw)
    cut = list(DataLoader(ds, batch_size=None, num_workers=workers, collate_fn=first_two))
    ds.set_epoch(0)
    full = list(DataLoader(ds, batch_size=None, num_workers=workers, collate_fn=as_it_is))
    for small, batch in zip(cut, full, strict=True):
        assert torch.equal(small["image"], batch["image"][:2])
        assert (small["names"], small["count"]) == (["id", "image", "label"], 3)
        assert whole(batch, ds.store)


def left_behind() -> tuple[int, int, int, int]:
    """Descriptors, mapped slots, threads and children of this process."""
    gc.collect()
    return (
        len(os.listdir("/proc/self/fd")), mapped(), threading.active_count(), len(multiprocessing.active_children()),
    )  # fmt: skip


@pytest.mark.parametrize("how", ["break", "raise", "second iterator", "whole", "in process"])
def test_leaving_leaves_nothing_behind(how: str, raw: Path) -> None:
    shared = sorted(os.listdir("/dev/shm"))

    def leave() -> None:
        batches = iter(DataLoader(stream(raw), batch_size=None, num_workers=0 if how == "in process" else 2))
        held = [next(batches), next(batches)]
        if how == "second iterator":
            other = iter(DataLoader(stream(raw), batch_size=None, num_workers=1))
            next(other)
        if how == "whole":
            held += list(batches)
        if how == "raise":
            raise ZeroDivisionError
        assert held[0]["id"].shape == (8,)

    for _ in range(2):
        with suppress(ZeroDivisionError):
            leave()
    before = left_behind()
    for _ in range(15):
        with suppress(ZeroDivisionError):
            leave()
    # What others have left may go meanwhile, but nothing comes.
    assert all(now <= then for now, then in zip(left_behind(), before, strict=True))
    assert sorted(os.listdir("/dev/shm")) == shared


def test_threads_may_read_one_data_set(raw: Path) -> None:
    ds, wrong = stream(raw, threads=2), list[int]()

    def read() -> None:
        for _ in range(6):
            held = [batch for batch in ds if not whole(batch, ds.store)]
            wrong.append(len(held))

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert wrong == [0] * 24


def test_a_slot_that_was_not_filled_is_free_again(tmp_path: Path) -> None:
    hurt = tmp_path / "hurt"
    build(str(make_serials(tmp_path / "src", 30)), str(hurt), Recipe(), Job(workers=1))
    shard = hurt / "train-000000.tar"
    data = bytearray(shard.read_bytes())
    data[data.index(b"IDAT") + 20] ^= 1
    shard.write_bytes(data)
    ds = stream(hurt)
    before = mapped()
    for _ in range(2 * SLOTS):
        with pytest.raises(DamageError):
            list(ds)
    assert mapped() <= before + 2 * 5  # the batches of one epoch, mapped on both sides


class Around(IterableDataset[Any]):
    """A user's data set around ours, in a worker."""

    def __init__(self, path: Path, how: str, aside: Path | None = None) -> None:
        self.path, self.how, self.aside = path, how, aside

    def __iter__(self) -> Any:
        if self.how == "short-lived":  # its ring dies, and its descriptors' numbers are given to other files
            for _ in range(3):
                batch = next(iter(stream(self.path)))
                gc.collect()
                others = [open(self.aside, "rb") for _ in range(40)] if self.aside else []  # noqa: SIM115
                yield batch
                del batch
                for other in others:
                    other.close()
            return
        for number, batch in enumerate(stream(self.path, batch_size=2)):
            if self.how == "echo":
                yield batch
                yield batch
            elif self.how == "copy":
                yield copy.copy(batch)
                yield copy.deepcopy(batch)
            elif self.how == "sent, then read":
                yield batch
                len(batch["label"])  # after it went away: the trainer's copy must stay whole
            elif self.how == "skip" and number % 2:
                yield {"used": len([fd for fd in os.listdir("/proc/self/fd") if _is_slot(fd)])}


def _is_slot(descriptor: str) -> bool:
    try:
        return "memfd:packer" in os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return False


def test_no_other_file_is_ever_read_or_written(raw: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"P" * 200_000)
    ds = stream(raw)
    for batch in DataLoader(Around(raw, "short-lived", precious), batch_size=None, num_workers=1):
        assert whole(batch, ds.store)
    del batch
    gc.collect()
    assert precious.read_bytes() == b"P" * 200_000


@pytest.mark.parametrize("how", ["echo", "copy"])
def test_a_batch_that_is_sent_twice_is_whole_or_refused(how: str, raw: Path) -> None:
    ds, held = stream(raw), list[Any]()
    batches = iter(DataLoader(Around(raw, how), batch_size=None, num_workers=1))
    for one, other in zip(batches, batches, strict=True):
        assert torch.equal(one["id"], other["id"])
        held = [*held[-4:], other]
        assert all(whole(batch, ds.store) for batch in (one, *held))
    if how == "echo":
        batches = iter(DataLoader(Around(raw, how), batch_size=None, num_workers=1))
        next(batches)
        with pytest.raises(StoreError, match="a batch was sent twice, and the first copy has been dropped"):
            next(batches)


def test_a_batch_may_be_read_after_it_was_sent(raw: Path) -> None:
    ds, held = stream(raw), list[Any]()
    for batch in DataLoader(Around(raw, "sent, then read"), batch_size=None, num_workers=1):
        held = [*held[-6:], batch]
        assert all(whole(each, ds.store) for each in held)


def test_batches_dropped_on_the_way_free_their_slots(raw: Path) -> None:
    used = [batch["used"] for batch in DataLoader(Around(raw, "skip"), batch_size=None, num_workers=1)]
    assert len(used) == 75
    assert max(used) <= used[0] + 4


def like_a_dict(batch: Any) -> Any:
    batch["image"] = batch["image"].float()
    assert batch.get("label") is not None
    assert {"label", "id", "image"} == set({**batch}) == set(dict(batch)) == set(batch.keys())
    return batch | {"more": 1} if hasattr(batch, "pop") else None


def test_a_handle_can_be_used_like_a_batch(raw: Path) -> None:
    for batch in DataLoader(stream(raw), batch_size=None, num_workers=1, collate_fn=like_a_dict):
        assert batch["image"].dtype == torch.float32
        assert batch["more"] == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_nesting_is_one_line_in_workers_too(workers: int, raw: Path) -> None:
    with pytest.raises(BatchError, match="the data set gives whole batches already"):
        next(iter(DataLoader(stream(raw), batch_size=2, num_workers=workers)))


def test_few_descriptors_are_enough(raw: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    ds = stream(raw, batch_size=1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, limits[1]))
    try:
        held = list(DataLoader(ds, batch_size=None))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(held) == 300
    assert all(whole(batch, ds.store) for batch in held)


KILLED = """
import multiprocessing, os, signal, sys
from torch.utils.data import DataLoader
from packer_reader import StreamDataset
from packer_reader.errors import StoreError
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background of a shell has it ignored
    batches = iter(DataLoader(StreamDataset(sys.argv[1], batch_size=2), batch_size=None, num_workers=2))
    next(batches)
    if sys.argv[2] == "worker":
        try:
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
            list(batches)
        except (RuntimeError, StoreError):
            sys.exit(0)
        sys.exit("the death of a worker was not noticed")
    os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("who", ["worker", "interrupt"])
def test_killed_programs_leave_nothing_behind(who: str, raw: Path, tmp_path: Path) -> None:
    shared = sorted(os.listdir("/dev/shm"))
    (tmp_path / "train.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "train.py"), str(raw), who]
    done = subprocess.run(command, timeout=100, capture_output=True, text=True, check=False, start_new_session=True)
    assert done.returncode == (0 if who == "worker" else -signal.SIGINT), done.stderr
    assert sorted(os.listdir("/dev/shm")) == shared
    group = [pid for pid in os.listdir("/proc") if pid.isdigit() and str(raw) in _command(pid)]
    assert group == []


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def is_free(slot: Slot) -> bool:
    return slot.free


def test_slots_are_filled_again_only_when_they_are_free() -> None:
    ring = Ring()
    places, size = places_for([("a", np.uint8, (100,)), ("b", np.int64, (3,))])
    first = ring.take(size)
    places[0].array(first.memory)[...] = 1
    batch = ring.handle(first, places, {}, lambda arrays, _: arrays).taken_over()
    second = ring.take(size)
    assert second is not first
    view = batch["a"][10:20]
    del batch
    gc.collect()
    assert not is_free(first)
    del view
    gc.collect()
    assert is_free(first)
    ring.give_back(second)
    assert {ring.take(size), ring.take(size)} == {first, second}
    assert all(place.offset % 64 == 0 for place in places)
    assert ring.take(10 * size).capacity == 10 * size
