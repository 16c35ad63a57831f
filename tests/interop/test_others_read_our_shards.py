"""Other libraries read tar stores as they are: also one shard, splits, and the metadata beside them."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import packer_reader
from packer import Job, Recipe, build, tokenized
from tests.conftest import make_photos, serial_of
from tests.text.documents import built, words, write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.interop,
    pytest.mark.usefixtures("careless_libraries"),
]


@pytest.fixture(params=["many", "one"])
def shards(request: pytest.FixtureRequest, serials: Path, tmp_path: Path) -> Path:
    """The numbered pictures in several shards, or in one."""
    size = {"many": 30_000, "one": 10_000_000}[request.param]
    build(str(serials), str(tmp_path / "shards"), Recipe(shard_bytes=size, meta=True), Job(workers=1))
    return tmp_path / "shards"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face keeps its cache by path."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))


def test_webdataset_reads_pixels_and_labels(shards: Path) -> None:
    import webdataset

    paths = sorted(str(path) for path in shards.glob("*.tar"))
    data = (
        webdataset.WebDataset(paths, shardshuffle=False, empty_check=False)
        .decode("rgb8")
        .to_tuple("png", "cls", "json")
    )
    found = [(serial_of(image), label, meta) for image, label, meta in data]
    store = packer_reader.open(shards)
    assert found == [(serial_of(store[n]["image"]), store[n]["label"], store[n]["meta"]) for n in range(60)]


def test_hugging_face_reads_a_folder(shards: Path) -> None:
    from datasets import load_dataset

    data = load_dataset(str(shards))["train"]
    assert data.num_rows == 60
    for row in data:
        serial = serial_of(np.asarray(row["png"]))
        assert (row["cls"], row["json"]["class"]) == (serial % 3, "abc"[serial % 3])


def test_hugging_face_reads_splits(serials: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    build(str(serials), str(tmp_path / "o"), Recipe(val=0.2, stratify=True), Job(workers=1))
    data = load_dataset(str(tmp_path / "o"))
    assert {name: split.num_rows for name, split in data.items()} == {"train": 48, "val": 12}
    assert load_dataset(str(tmp_path / "o" / "val"))["validation"].num_rows == 12


def test_tar_lists_and_extracts(shards: Path, tmp_path: Path) -> None:
    names = []
    for path in sorted(shards.glob("*.tar")):
        done = subprocess.run(
            ["tar", "-xvf", str(path), "-C", str(tmp_path)], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        names += done.stdout.split()
    assert names == [f"{key:016d}.{suffix}" for key in range(60) for suffix in ("png", "cls", "json")]


@pytest.mark.parametrize("encode", ["jpg", "png", "webp", "raw"])
def test_every_suffix_decodes_in_webdataset(encode: Any, tmp_path: Path) -> None:
    import webdataset

    recipe = Recipe(encode=encode, resize=(24,), fit="stretch")
    build(str(make_photos(tmp_path / "src", 3)), str(tmp_path / "o"), recipe, Job(workers=1))
    store = packer_reader.open(tmp_path / "o")
    data = webdataset.WebDataset(str(tmp_path / "o" / "train-000000.tar"), shardshuffle=False, empty_check=False)
    suffix = store.manifest.suffixes[0]
    for number, (image, label) in enumerate(data.decode("rgb8").to_tuple(suffix, "cls")):
        assert np.abs(image.astype(int) - store[number]["image"]).max() <= 4
        assert label == store[number]["label"]


def test_hugging_face_reads_packed_text(tmp_path: Path) -> None:
    """A block is a row of theirs; nothing beside the shards may look like another split."""
    from datasets import load_dataset

    source, text = write(tmp_path / "d.jsonl", words(50)), tokenized(pack="concat", seq_len=32)
    store = built(source, tmp_path / "o", text)
    data = load_dataset(str(tmp_path / "o"))
    assert set(data) == {"train"}
    rows = np.concatenate([np.asarray(row["tokens.npy"]) for row in data["train"]])
    assert rows.tolist() == [sample["tokens"].tolist() for sample in store]
    build(str(source), str(tmp_path / "p"), Recipe(text=text, val=0.3), Job(workers=1))
    assert set(load_dataset(str(tmp_path / "p"))) == {"train", "val"}
