"""The main job from end to end: an image folder becomes an LMDB store and tar shards, and trains a small network."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import skimage
import sklearn.datasets
import torch

from packer_reader import HorizontalFlip, RandomResizedCrop, StreamDataset, loader

ROOT = Path(__file__).resolve().parent.parent / ".demo"
PHOTOS = ("astronaut", "chelsea", "coffee", "rocket")
PER_CLASS = 150


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def photographs() -> dict[str, Any]:
    folder = Path(skimage.__file__).parent / "data"
    found = {name: cv2.imread(str(next(folder.glob(f"{name}.*")))) for name in PHOTOS}
    found |= {n: sklearn.datasets.load_sample_image(f"{n}.jpg")[..., ::-1] for n in ("china", "flower")}
    return {name: photo for name, photo in found.items() if photo is not None}


def make_folder(folder: Path, per_class: int = PER_CLASS) -> None:
    """Crops of each photograph: which one it was is the class."""
    random = np.random.default_rng(0)
    for name, photo in photographs().items():
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            side = int(min(photo.shape[:2]) * random.uniform(0.4, 0.8))
            top, left = (random.integers(0, n - side) for n in photo.shape[:2])
            crop = cv2.resize(photo[top : top + side, left : left + side], (300, 300), interpolation=cv2.INTER_AREA)
            cv2.imwrite(str(folder / name / f"{number:04d}.jpg"), crop, [cv2.IMWRITE_JPEG_QUALITY, 92])


def packer(*arguments: str) -> None:
    print("$ packer", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "packer", *arguments], cwd=ROOT, check=True)


def stream(store: str) -> None:
    ds = StreamDataset(ROOT / store, batch_size=64, seed=0, with_id=True)
    for epoch in range(2):
        started = time.monotonic()
        ids = torch.cat([batch["id"] for batch in loader(ds, num_workers=2)])
        rate = len(ids) / (time.monotonic() - started)
        print(
            f"{store}, epoch {epoch}: {len(ids)} samples, each once: {len(set(ids.tolist())) == len(ds.store)}, "
            f"begins {ids[:5].tolist()}, {rate:,.0f} samples/s with the workers' start"
        )


def train(store: str) -> None:
    torch.manual_seed(0)
    ds = StreamDataset(
        f"{ROOT}/{store}",
        split="train",
        batch_size=32,
        crop=RandomResizedCrop(64, scale=(0.3, 1.0)),
        flip=HorizontalFlip(),
    )
    test = StreamDataset(f"{ROOT}/{store}", split="val", batch_size=64, crop=RandomResizedCrop(64, scale=(0.9, 1.0)))
    layers: list[torch.nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [torch.nn.Conv2d(before, after, 3, stride=2, padding=1), torch.nn.BatchNorm2d(after), torch.nn.ReLU()]
    network = torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, len(ds.store.classes or ()))
    )
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3)
    batches = loader(ds, num_workers=2)
    for epoch in range(6):
        network.train()
        total = 0.0
        for batch in batches:
            loss = torch.nn.functional.cross_entropy(network(batch["image"].float() / 255), batch["label"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item()
        network.eval()
        with torch.no_grad():
            right = sum((network(b["image"].float() / 255).argmax(1) == b["label"]).sum().item() for b in test)
        share = right / len(test.store)
        print(f"epoch {epoch}: loss {total / len(ds):.3f}, {share:.0%} of {len(test.store)} held out right")


def main() -> None:
    shutil.rmtree(ROOT, ignore_errors=True)
    say(f"an image folder, {len(PHOTOS) + 2} classes x {PER_CLASS} JPEGs, in {ROOT / 'images'}")
    make_folder(ROOT / "images")
    say("an LMDB store and tar shards from it")
    packer("build", "images", "images.lmdb", "--resize", "128", "--fit", "crop", "--quiet")
    packer("shard", "images", "shards", "--resize", "128", "--fit", "crop", "--size", "2MB", "--quiet")
    packer("build", "images", "splits", "--resize", "128", "--fit", "crop", "--val", "0.2", "--quiet")
    packer("verify", "shards", "--full", "--quiet")
    say("both streamed for two epochs through a stock DataLoader")
    stream("images.lmdb")
    stream("shards")
    say("a small network trained from the store with splits")
    train("splits")
    say(f"done; look around in {ROOT}, or run: packer inspect {ROOT / 'images.lmdb'}")


if __name__ == "__main__":
    main()
