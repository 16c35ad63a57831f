"""Promises about samples of several images: each is a field of its own, and equal ones have one geometry."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import packer_reader
from packer import Job, Recipe, build
from packer_reader import HorizontalFlip, RandomResizedCrop, StreamDataset
from packer_reader.check import check_store

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 21


def picture(number: int, height: int = 30, width: int = 44) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def mask(number: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((30, 44), number, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def as_list(root: Path) -> tuple[Path, Job]:
    lines = ["file_name,right_file_name,mask_file_name,n"]
    for number in range(COUNT):
        (root / f"l{number}.png").write_bytes(picture(number))
        (root / f"r{number}.png").write_bytes(picture(number))
        (root / f"m{number}.png").write_bytes(mask(number))
        lines.append(f"l{number}.png,r{number}.png,m{number}.png,{number}")
    (root / "l.csv").write_text("\n".join(lines))
    return root / "l.csv", Job(workers=1, fields=("n=number:n",))


def as_parquet(root: Path) -> tuple[Path, Job]:
    rows = [
        {
            "image": {"bytes": picture(number), "path": None},
            "second": {"bytes": picture(number), "path": "x"},
            "annotation": mask(number),
            "n": number,
        }
        for number in range(COUNT)
    ]
    pq.write_table(pa.Table.from_pylist(rows), root / "l.parquet")
    return root / "l.parquet", Job(
        workers=2, runner="processes", fields=("image=image:image", "right=image:second", "mask=mask:annotation")
    )


def as_tar(root: Path) -> tuple[Path, Job]:
    with tarfile.open(root / "l.tar", "w") as tar:
        for number in range(COUNT):
            members = {"png": picture(number), "right.png": picture(number), "mask.png": mask(number)}
            for suffix, data in members.items():
                info = tarfile.TarInfo(f"{number:05}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return root / "l.tar", Job(workers=1)


@pytest.mark.parametrize("container", ["tar", "lmdb"])
@pytest.mark.parametrize("make", [as_list, as_parquet, as_tar])
def test_every_image_is_a_field_with_the_geometry_of_its_sample(make: Any, container: Any, tmp_path: Path) -> None:
    source, job = make(tmp_path)
    build(str(source), str(tmp_path / "o"), Recipe(container=container, resize=(24,)), job)
    assert list(check_store(tmp_path / "o", full=True)) == []
    store = packer_reader.open(tmp_path / "o")
    kinds = {field.name: (field.kind, field.suffix, field.shape) for field in store.manifest.fields}
    assert kinds["image"] == ("image", "png", (24, 35, 3))
    assert kinds["right"] == ("image", "right.png", (24, 35, 3))
    assert store.columns.numbers("right_height").tolist() == [24] * COUNT
    ds = StreamDataset(
        tmp_path / "o", batch_size=4, crop=RandomResizedCrop(16, scale=(0.2, 0.9)), flip=HorizontalFlip(), with_id=True
    )
    seen = []
    for batch in DataLoader(ds, batch_size=None, num_workers=2):
        assert torch.equal(batch["image"], batch["right"])
        assert torch.equal(batch["mask"].unique(), torch.as_tensor(sorted(int(m.max()) for m in batch["mask"])))
        seen += batch["id"].tolist()
    assert sorted(seen) == list(range(COUNT))
    again = build(str(tmp_path / "o"), str(tmp_path / "p.lmdb"), Recipe(seed=3), Job(workers=1))
    assert again.written == COUNT
    copied = packer_reader.open(tmp_path / "p.lmdb")
    assert all((sample["image"] == sample["right"]).all() for sample in copied)


def test_images_of_a_sample_may_differ_in_size(tmp_path: Path) -> None:
    lines = ["file_name,right_file_name"]
    for number in range(6):
        (tmp_path / f"l{number}.png").write_bytes(picture(number))
        (tmp_path / f"r{number}.png").write_bytes(picture(number + 50, 20, 20 + number))
        lines.append(f"l{number}.png,r{number}.png")
    lines.append("l0.png,gone.png")
    (tmp_path / "l.csv").write_text("\n".join(lines))
    report = build(str(tmp_path / "l.csv"), str(tmp_path / "o"), Recipe(), Job(workers=1))
    assert report.errors == {"vanished": 1}
    store = packer_reader.open(tmp_path / "o")
    spec = {field.name: field for field in store.manifest.fields}["right"]
    assert (spec.shape, spec.maximum) == ((20, None, 3), (20, 25, 3))
    for place in range(6):
        number = int(store.source(place)[1])
        assert (store[place]["right"] == np.asarray(Image.open(tmp_path / f"r{number}.png"))).all()
    batch = next(iter(StreamDataset(tmp_path / "o", batch_size=6, crop=RandomResizedCrop(8))))
    assert batch["right"].shape == (6, 3, 8, 8)
