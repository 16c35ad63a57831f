"""Promises of crops at decode time: several views of one decode, the same for every codec and transport."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

import packer_reader
from packer import Recipe, build
from packer.job import Job
from packer_reader import CenterCrop, HorizontalFlip, MapDataset, RandomResizedCrop, Resize, StreamDataset
from packer_reader.crops import Draw
from packer_reader.errors import BatchError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from packer_reader.crops import Crop

CROPS: dict[str, Crop] = {
    "large": RandomResizedCrop(24),
    "small": RandomResizedCrop((10, 12), scale=(0.05, 0.3)),
    "all": Resize((8, 8)),
}


@pytest.fixture(scope="module", params=["jpg", "png", "raw"])
def photos_store(request: pytest.FixtureRequest, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("views") / "o"
    build(str(photos), str(out), Recipe(resize=(48,), encode=request.param), Job(workers=1))
    return out


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 1, "transport": "plain", "threads": 2}])
@pytest.mark.parametrize("flip", [None, HorizontalFlip(1)])
def test_views_are_cuts_of_the_same_image(flip: Any, options: dict[str, Any], photos_store: Path) -> None:
    workers = options.pop("num_workers", 0) if (options := dict(options)) else 0
    ds = StreamDataset(photos_store, batch_size=7, crop=CROPS, flip=flip, seed=3, with_id=True, **options)
    store, seen = packer_reader.open(photos_store), 0
    for batch in DataLoader(ds, batch_size=None, num_workers=workers):
        assert list(batch) == ["image_large", "image_small", "image_all", "label", "id"]
        for place, number in enumerate(batch["id"].tolist()):
            pixels = store[number]["image"]
            for view, (name, crop) in enumerate(CROPS.items()):
                cut = crop.cut(pixels.shape[0], pixels.shape[1], Draw(3, 0, number, view))
                wanted = cut.of(pixels)[:, ::-1] if flip else cut.of(pixels)
                got = batch[f"image_{name}"][place].permute(1, 2, 0).numpy()
                # Photographs of 8 times the size of a view are decoded at a fraction.
                assert np.abs(got.astype(int) - wanted).mean() < (0.01 if cut.divisor == 1 else 6)
                seen += 1
    assert seen == 3 * len(store)


def test_the_first_view_is_that_of_one_crop(photos_store: Path) -> None:
    one = StreamDataset(photos_store, batch_size=50, crop=CROPS["small"])
    several = StreamDataset(photos_store, batch_size=50, crop={"a": CROPS["small"], "b": CROPS["small"]})
    for alone, both in zip(one, several, strict=True):
        first, other = ((both[name].int() - alone["image"]).abs().float().mean() for name in ("image_a", "image_b"))
        assert first < 2  # not 0: what one view decodes at a fraction, another one may want in full
        assert other > 10


def test_views_of_single_samples_and_as_pil(photos_store: Path) -> None:
    sample = MapDataset(photos_store, crop={"x": CenterCrop(20), "y": Resize(9)}, rename={"image": "picture"})[0]
    assert sample["picture_x"].shape == (3, 20, 20)
    assert min(sample["picture_y"].shape[1:]) == 9
    batch = next(iter(StreamDataset(photos_store, batch_size=2, crop={"x": CenterCrop(20)}, decode="pil")))
    assert [image.size for image in batch["image_x"]] == [(20, 20), (20, 20)]


def test_views_that_cannot_be_used_are_refused(photos_store: Path) -> None:
    def refused(crop: Any, message: str, **options: Any) -> None:
        with pytest.raises(UsageError, match=message):
            StreamDataset(photos_store, batch_size=2, crop=crop, **options)

    refused({}, "need a name each")
    refused({3: CenterCrop(2)}, "need a name each")
    refused({"a": None}, "crop is None, it must be")
    refused({"a": RandomResizedCrop}, "crop is <class")
    refused({"a": CenterCrop(2)}, "'image_a' names two fields", rename={"label": "image_a"})
    with pytest.raises(BatchError, match="differ in size"):
        StreamDataset(photos_store, batch_size=2, crop={"a": CenterCrop(9), "b": Resize(9)})


def test_arrays_are_read_by_many_threads(photos: Path, tmp_path: Path) -> None:
    """Python's parser, which numpy reads headers with, fails where threads switch in it."""
    build(str(photos), str(tmp_path / "o"), Recipe(resize=(48, 48), fit="crop", encode="raw"), Job(workers=1))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(10):
            for batch in StreamDataset(tmp_path / "o", batch_size=40, threads=8, crop=CenterCrop(40)):
                assert batch["image"].shape[1:] == (3, 40, 40)
    finally:
        sys.setswitchinterval(before)


def test_a_fork_waits_for_reads_of_other_threads(photos: Path, tmp_path: Path) -> None:
    build(str(photos), str(tmp_path / "o.lmdb"), Recipe(container="lmdb", resize=(16,)), Job(workers=1))
    done = threading.Event()

    def read() -> None:
        ds = StreamDataset(tmp_path / "o.lmdb", batch_size=4, crop=CenterCrop(9))
        while not done.is_set():
            list(ds)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(8):
            ds = StreamDataset(tmp_path / "o.lmdb", batch_size=4, crop=CenterCrop(9))
            batches = DataLoader(ds, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60)
            assert sum(len(batch["label"]) for batch in batches) == len(ds.store)
    finally:
        done.set()
        for reader in readers:
            reader.join()


def test_empty_values_come_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("path,words\na.png,x\na.png,\n")
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    build(str(tmp_path / "l.csv"), str(tmp_path / "o"), Recipe(), Job(workers=1))
    for workers in (0, 1):
        ds = StreamDataset(tmp_path / "o", batch_size=2, decode="bytes")
        (batch,) = DataLoader(ds, batch_size=None, num_workers=workers)
        assert sorted(len(words) for words in batch["words"]) == [0, 1]


def test_a_child_of_a_child_reads_too(photos: Path, tmp_path: Path) -> None:
    build(str(photos), str(tmp_path / "o.lmdb"), Recipe(container="lmdb", resize=(16,)), Job(workers=1))
    program = f"""
import os
from packer_reader import open as open_store
store = open_store({str(tmp_path / "o.lmdb")!r})
for _ in range(3):
    store[0]
    child = os.fork()
    if child:
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
store[1]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
