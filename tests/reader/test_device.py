"""Pixels to floats, and copies to a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import packer_reader
from packer import Job, Recipe, build
from packer_reader import DevicePrefetcher, Normalize, StreamDataset, loader
from packer_reader.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_normalized_pixels_have_mean_0_and_deviation_1(photos: Path, tmp_path: Path) -> None:
    build(str(photos), str(tmp_path / "o"), Recipe(resize=(32,), fit="crop", encode="png"), Job(workers=1))
    normalize = Normalize.of(packer_reader.open(tmp_path / "o"))
    (batch,) = loader(StreamDataset(tmp_path / "o", batch_size=24), num_workers=0)
    out = normalize(batch["image"])
    assert out.dtype == torch.float32
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert out.mean((0, 2, 3)).abs().max() < 0.02
    assert (out.std((0, 2, 3)) - 1).abs().max() < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_imagenets_values_are_torchvisions(dtype: torch.dtype) -> None:
    images = torch.arange(2 * 3 * 4 * 4).reshape(2, 3, 4, 4).to(torch.uint8)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    assert torch.allclose(
        Normalize.imagenet(dtype)(images), ((images.double() / 255 - mean) / std).to(dtype), atol=1e-5
    )
    wide = images.to(torch.int32).mul(257).to(torch.uint16)
    assert torch.allclose(Normalize.imagenet(dtype)(wide), Normalize.imagenet(dtype)(images), atol=1e-5)


def test_what_would_normalize_wrongly_is_refused() -> None:
    with pytest.raises(UsageError, match="the images are torch.float32"):
        Normalize.imagenet()(torch.zeros(1, 3, 2, 2))
    for mean, std in (((0.5,), (0.1, 0.1)), ((), ()), ((0.5,), (0.0,))):
        with pytest.raises(UsageError, match="give one of each per channel"):
            Normalize(mean, std)


def test_on_a_cpu_batches_pass_through(store: Path) -> None:
    ds = StreamDataset(store, batch_size=8, with_id=True)
    batches = DevicePrefetcher(loader(ds, num_workers=0), "cpu")
    assert len(batches) == 8
    assert sorted(n for batch in batches for n in batch["id"].tolist()) == list(range(60))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_batches_arrive_whole_on_the_device(store: Path) -> None:
    ds = StreamDataset(store, batch_size=8, with_id=True)
    expected = dict[int, torch.Tensor]()
    for batch in loader(ds, num_workers=0):
        expected |= zip(batch["id"].tolist(), batch["image"].clone(), strict=True)
    for _ in range(5):
        for batch in DevicePrefetcher(loader(ds, num_workers=2), "cuda"):
            assert batch["image"].is_cuda
            for number, image in zip(batch["id"].tolist(), batch["image"].cpu(), strict=True):
                assert torch.equal(image, expected[number])
