"""Promises of `packer plan`: sizes by headers, copies and leaks by content, masks, and a command that works."""

from __future__ import annotations

import json
import shlex
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import packer_reader
from packer.preview.suggest import Speeds, codec_for, shards_for
from packer.transforms.decode import decode, upright_size
from tests.conftest import make_photos, make_serials
from tests.text.documents import write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def plan(run: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    def call(*arguments: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(run("plan", *arguments, "--json").stdout)
        return found

    return call


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_sizes_are_those_of_upright_headers(plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    for number, (height, width) in enumerate([(30, 20), (40, 20), (50, 20)]):
        turned = Image.Exif()
        turned[0x0112] = 6  # stored lying on its side
        picture(width, height, number).save(tmp_path / f"{number}.jpg", exif=turned)
    sides = plan(tmp_path)["survey"]["sides"]
    assert (sides["height"]["0"], sides["height"]["50"], sides["height"]["100"]) == (30, 40, 50)
    assert sides["width"]["0"] == sides["width"]["100"] == sides["shorter"]["50"] == 20
    assert sides["longer"] == sides["height"]


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tiff"])
def test_a_header_tells_the_size_that_decoding_gives(tmp_path: Path, suffix: str, turn: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    picture(7, 11).save(tmp_path / f"a.{suffix}", exif=exif)
    data = (tmp_path / f"a.{suffix}").read_bytes()
    assert upright_size(data, 10**6) == decode(data, gray=False, max_pixels=10**6).size


def test_copies_are_found_and_named(plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    source = make_photos(tmp_path / "s", 30)
    first, other = source / "cat" / "again.jpg", source / "dog" / "again.jpg"
    original = next((source / "cat").iterdir())
    shutil.copy(original, first)
    shutil.copy(original, other)
    found = plan(source)
    assert found["survey"]["copies"] == 2
    (names,) = found["survey"]["copied"]
    assert sorted(names) == sorted(["cat/again.jpg", "dog/again.jpg", f"cat/{original.name}"])
    assert found["survey"]["relabelled"] == 1
    assert any("2 samples are exact copies of another" in remark for remark in found["remarks"])
    assert any("1 contents stand in several classes" in remark for remark in found["remarks"])


def test_a_clean_source_gives_no_remarks(plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    found = plan(make_photos(tmp_path / "s", 30))
    assert found["remarks"] == []
    assert found["survey"]["compared"] == found["survey"]["comparable"]


def test_what_is_in_two_splits_is_said(plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    make_serials(tmp_path / "train", 9)
    make_serials(tmp_path / "val", 9, start=100)
    shutil.copy(tmp_path / "train" / "a" / "00000.png", tmp_path / "val" / "a" / "leak.png")
    found = plan(tmp_path)
    assert found["survey"]["leaked"] == {"train, val": 1}
    assert found["survey"]["leaks"] == [["train/a/00000.png", "val/a/leak.png"]]
    assert any("1 contents are in both train and val" in remark for remark in found["remarks"])


def test_copies_leak_through_a_split_that_val_makes(plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    source = make_serials(tmp_path / "s", 40)
    for path in list((source / "a").iterdir()):
        shutil.copy(path, path.with_name(f"again{path.name}"))
    assert plan(source, "--val", "0.5")["survey"]["leaked"]["train, val"] > 0
    assert plan(source)["survey"]["leaked"] == {}


def test_classes_that_a_split_lacks_are_named(plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    make_serials(tmp_path / "train", 9, "abc")
    make_serials(tmp_path / "val", 9, "abd", start=100)
    found = plan(tmp_path)
    assert found["missing"] == {"train": ["d"], "val": ["c"]}
    assert any("1 classes of other splits have no sample in val: 'c'" in remark for remark in found["remarks"])


def masked(root: Path, values: tuple[int, ...], suffix: str = "png") -> Path:
    for number in range(6):
        for folder in ("images", "masks"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        picture(16, 16, number).save(root / "images" / f"{number}.png")
        mask = np.resize(np.array(values, np.uint8), (16, 16))
        Image.fromarray(mask).save(root / "masks" / f"{number}.{suffix}")
    return root


def test_binary_masks_with_255_are_said(plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    found = plan(masked(tmp_path / "s", (0, 255)), "--from", "pairs")
    assert found["survey"]["masks"] == {"looked": 6, "lossy": 0, "binary": 6}
    assert any("masks hold only 0 and 255" in remark for remark in found["remarks"])


@pytest.mark.parametrize("values", [(0, 1), (0, 1, 255), (0,)])
def test_masks_of_classes_are_not(plan: Callable[..., dict[str, Any]], tmp_path: Path, values: tuple[int, ...]) -> None:
    found = plan(masked(tmp_path / "s", values), "--from", "pairs")
    assert found["survey"]["masks"] == {"looked": 6, "lossy": 0, "binary": 0}
    assert not [remark for remark in found["remarks"] if "masks" in remark]


def test_masks_in_jpeg_are_said(plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    found = plan(masked(tmp_path / "s", (0, 1, 2), "jpg"), "--from", "pairs")
    assert found["survey"]["masks"]["lossy"] == 6
    assert any("6 of 6 masks are lossy pictures" in remark for remark in found["remarks"])


def test_copies_of_documents_are_found(plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    texts = ["one and two", "three", "one and two", "four and five"]
    found = plan(write(tmp_path / "d.jsonl", texts))
    assert (found["survey"]["copies"], found["survey"]["sides"]) == (1, {})


def test_without_time_nothing_is_looked_at(plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    found = plan(make_photos(tmp_path / "s", 10), "--look", "0")
    assert (found["survey"]["opened"], found["survey"]["comparable"]) == (0, 0)
    assert found["estimate"]["store_bytes"] > 0


def test_the_command_builds_what_is_suggested(
    run: Callable[..., Any], plan: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "a b"
    for number in range(12):
        path = source / "xy"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(400, 500, number).save(path)
    monkeypatch.chdir(source)
    found = plan(".", "--gray", "--val", "0.4", "--no-shuffle")
    options = {one["option"]: one["value"] for one in found["suggestions"]}
    assert options["--resize"] == "256"
    assert options["--encode"] in {"raw", "keep"}
    assert options["--size"] == "16MB"
    words = shlex.split(found["command"])
    assert words[:5] == ["packer", "shard", ".", "../a b-shards", "--no-shuffle"] or "--gray" in words
    run(*words[1:], "--workers", "1", "--quiet")
    store = packer_reader.open(tmp_path / "a b-shards", split="train")
    assert store.manifest.fields[0].shape == (256, 320, 1)
    assert not store.manifest.shuffled


def test_what_is_given_is_not_suggested(plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    picture(400, 500).save(tmp_path / "a.jpg")
    found = plan(tmp_path, "--resize", "128", "--encode", "png", "--size", "1MB")
    assert found["suggestions"] == []
    assert found["command"].endswith("--resize 128 --encode png --size 1MB")


@given(st.floats(1e3, 1e6), st.floats(1, 1e5), st.floats(1e6, 1e10), st.integers(1, 10**8))
def test_raw_is_suggested_where_it_is_read_faster(size: float, decoded: float, disk: float, samples: int) -> None:
    room = 10**9
    speeds = Speeds(size, 8 * size, decoded, disk, copied=1e10, room=room)
    raw = (1e10 if 8 * size * samples <= room else disk) / (8 * size)
    encoded = min(decoded, (1e10 if size * samples <= room else disk) / size)
    chosen = codec_for(speeds, samples, "jpg").value
    assert (chosen == "raw") == (raw >= 1.5 * encoded)


@given(st.floats(1, 1e16))
def test_shards_are_neither_few_nor_countless(store_bytes: float) -> None:
    size = int(shards_for(store_bytes).value.removesuffix("MB")) * 10**6
    assert 16_000_000 <= size <= 1_024_000_000
    assert size == 16_000_000 or store_bytes / size > 32
