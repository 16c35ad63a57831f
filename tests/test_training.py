"""The main job's proof: a network trained from a store learns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import sklearn.datasets
import torch
from PIL import Image

from packer import Job, Recipe, build
from packer_reader import StreamDataset, loader

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("container", ["lmdb", pytest.param("tar", marks=pytest.mark.slow)])
def test_digits_are_learned_from_a_store(container: Any, tmp_path: Path) -> None:
    digits = sklearn.datasets.load_digits()
    for number, (image, target) in enumerate(zip(digits.images, digits.target, strict=True)):
        folder = tmp_path / "digits" / str(target)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15.9).astype(np.uint8)).save(folder / f"{number:04d}.png")
    recipe = Recipe(container=container, gray=True, val=0.2)
    build(str(tmp_path / "digits"), str(tmp_path / "o"), recipe, Job(workers=1))
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, stride=2), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(576, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3)
    batches = loader(StreamDataset(tmp_path / "o", split="train", batch_size=64), num_workers=1)
    for _ in range(12):
        for batch in batches:
            loss = torch.nn.functional.cross_entropy(network(batch["image"].float() / 255), batch["label"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    test = StreamDataset(tmp_path / "o", split="val", batch_size=64)
    with torch.no_grad():
        right = sum(int((network(b["image"].float() / 255).argmax(1) == b["label"]).sum()) for b in test)
    assert right / len(test.store) > 0.95
