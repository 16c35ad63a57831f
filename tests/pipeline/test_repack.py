"""Promises about stores as a source: nothing is lost, and bytes that need not change do not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

import packer_reader
from packer import Job, Recipe, build
from packer_reader.errors import SourceError, UsageError
from tests.conftest import make_photos

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of field that a store can have beside images."""
    root = tmp_path_factory.mktemp("repack")
    rng = np.random.default_rng(0)
    rows = []
    for number in range(40):
        size = (20 + number, 30)
        Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).save(root / f"{number:02}.png")
        Image.fromarray(rng.integers(0, 4, size, np.uint8)).save(root / f"m{number:02}.png")
        rows.append({
            "path": f"{number:02}.png", "mask_file_name": f"m{number:02}.png", "label": ["b", "a"][number % 2],
            "words": f"é {number}", "score": number / 3, "info": {"n": [number]},
        })  # fmt: skip
    (root / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root / "list.jsonl"


def made(source: Path | list[Path], out: Path, job: Job | None = None, **options: Any) -> packer_reader.Store:
    paths = [str(path) for path in (source if isinstance(source, list) else [source])]
    build(paths, str(out), Recipe(**options), job or Job(workers=1))
    return packer_reader.open(out)


def contents(store: packer_reader.Store) -> dict[str, Any]:
    found = {}
    for number in range(len(store)):
        values = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in store[number].items()}
        columns = {c: store.columns.numbers(c)[number].tolist() for c in store.columns if c != "name"}
        found[store.source(number)] = values, columns
    return found


@pytest.mark.parametrize("order", [("tar", "lmdb"), ("lmdb", "tar"), ("tar", "tar"), ("lmdb", "lmdb")])
def test_a_store_becomes_another_one_with_the_same_contents(order: Any, listed: Path, tmp_path: Path) -> None:
    first = made(listed, tmp_path / "a", container=order[0])
    second = made(tmp_path / "a", tmp_path / "b", container=order[1], seed=9)
    assert second.manifest.source["type"] == "store"
    assert second.manifest.fields == first.manifest.fields
    assert second.classes == first.classes == ("a", "b")
    assert contents(second) == contents(first)
    assert [second.source(n) for n in range(40)] != [first.source(n) for n in range(40)]
    same = made(tmp_path / "b", tmp_path / "c", container=order[0], shuffle=False)
    assert [same.source(n) for n in range(40)] == [second.source(n) for n in range(40)]


def test_converting_tar_and_lmdb_keeps_the_content_digest(listed: Path, tmp_path: Path) -> None:
    first = made(listed, tmp_path / "a", container="tar", shuffle=False)
    second = made(tmp_path / "a", tmp_path / "b", container="lmdb", shuffle=False)
    assert second.manifest.content_digest == first.manifest.content_digest


@pytest.mark.parametrize("encode", ["jpg", "png", "raw", "webp"])
def test_images_are_copied_or_resized(encode: Any, tmp_path: Path) -> None:
    make_photos(tmp_path / "photos", 12)
    first = made(tmp_path / "photos", tmp_path / "a", encode=encode, resize=(48, 48), fit="crop")
    copied = made(tmp_path / "a", tmp_path / "b", seed=3)
    suffix = first.manifest.fields[0].suffix
    assert copied.manifest.fields[0] == first.manifest.fields[0]
    for number in range(len(copied)):
        old = first.find(copied.source(number))
        assert copied.encoded(number)[suffix] == first.encoded(old)[suffix]
    assert copied.manifest.statistics == first.manifest.statistics
    small = made(tmp_path / "a", tmp_path / "c", resize=(16, 16), fit="stretch")
    assert {sample["image"].shape for sample in small} == {(16, 16, 3)}
    assert small.manifest.fields[0].codec == first.manifest.fields[0].codec


def test_splits_stay_and_can_be_made(tmp_path: Path) -> None:
    make_photos(tmp_path / "photos", 30)
    build(str(tmp_path / "photos"), str(tmp_path / "a"), Recipe(val=0.3), Job(workers=1))
    build(str(tmp_path / "a"), str(tmp_path / "b"), Recipe(resize=(16,)), Job(workers=1))
    for split in ("train", "val"):
        one, other = (packer_reader.open(tmp_path / name, split=split) for name in "ab")
        assert sorted(one.columns.strings("name")) == sorted(other.columns.strings("name"))
        assert other[0]["image"].shape[0] == 16 or other[0]["image"].shape[1] == 16
    build(str(tmp_path / "a" / "train"), str(tmp_path / "c"), Recipe(), Job(workers=1))
    assert packer_reader.open(tmp_path / "c", split="train").manifest.split == "train"


def test_several_stores_become_one_and_odd_ones_are_refused(listed: Path, tmp_path: Path) -> None:
    make_photos(tmp_path / "one", 8)
    make_photos(tmp_path / "two", 8)
    for name in ("one", "two"):
        made(tmp_path / name, tmp_path / f"{name}.store")
    both = made([tmp_path / "one.store", tmp_path / "two.store"], tmp_path / "both")
    assert len(both) == 16
    assert len({both.source(number) for number in range(16)}) == 16
    made(listed, tmp_path / "other")
    with pytest.raises(SourceError, match="have other fields or classes"):
        made([tmp_path / "one.store", tmp_path / "other"], tmp_path / "x")
    with pytest.raises(SourceError, match="packer's stores and raw images are built apart"):
        made([tmp_path / "one.store", tmp_path / "two"], tmp_path / "x")


def test_damage_is_skipped_and_named(listed: Path, tmp_path: Path) -> None:
    first = made(listed, tmp_path / "a")
    data = bytearray((tmp_path / "a" / "train-000000.tar").read_bytes())
    data[data.index(b"IDAT") + 8] ^= 1
    (tmp_path / "a" / "train-000000.tar").write_bytes(data)
    report = build(str(tmp_path / "a"), str(tmp_path / "b"), Recipe(), Job(workers=1))
    assert (report.written, report.errors) == (39, {"corrupt": 1})
    (line,) = (tmp_path / "b" / "errors.jsonl").read_text().splitlines()
    assert json.loads(line)["name"] == first.source(0)


def test_options_that_change_bytes_count_for_stores_too(tmp_path: Path) -> None:
    Image.new("RGB", (100, 50)).save(tmp_path / "i.png")
    boxes = [[20, 10, 40, 20], [5, 5, 3, 3]]
    document = {
        "images": [{"id": 1, "file_name": "i.png"}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": box} for box in boxes],
        "categories": [{"id": 1, "name": "x"}],
    }
    (tmp_path / "c.json").write_text(json.dumps(document))
    assert len(made(tmp_path / "c.json", tmp_path / "a")[0]["boxes"]["boxes"]) == 2
    assert len(made(tmp_path / "a", tmp_path / "b", min_box_size=4)[0]["boxes"]["boxes"]) == 1
    assert made(tmp_path / "a", tmp_path / "c", gray=True)[0]["image"].shape == (50, 100, 1)
    assert made(tmp_path / "a", tmp_path / "d", meta=True)[0]["meta"]["name"] == "i.png"
    with pytest.raises(SourceError, match="over the limit"):
        made(tmp_path / "a", tmp_path / "e", max_pixels=100)


def test_boxes_lead_back_to_the_first_original(tmp_path: Path) -> None:
    Image.new("RGB", (100, 50)).save(tmp_path / "i.png")
    document = {
        "images": [{"id": 1, "file_name": "i.png"}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [20, 10, 40, 20]}],
        "categories": [{"id": 1, "name": "x"}],
    }
    (tmp_path / "c.json").write_text(json.dumps(document))
    made(tmp_path / "c.json", tmp_path / "a", resize=(50, 50), fit="pad")
    again = made(tmp_path / "a", tmp_path / "b", resize=(25, 25), fit="stretch")[0]["boxes"]
    (sx, _, tx), (_, sy, ty) = again["affine"]
    assert again["orig_size"] == [50, 100]
    assert [(x - t) / s for x, t, s in zip(again["boxes"][0], [tx, ty] * 2, [sx, sy] * 2, strict=True)] == [
        20,
        10,
        60,
        30,
    ]


def test_workers_make_the_same_bytes(listed: Path, tmp_path: Path) -> None:
    made(listed, tmp_path / "s")
    for workers, name in ((1, "a"), (2, "b")):
        made(tmp_path / "s", tmp_path / name, Job(workers=workers, runner="processes"), unit=4)
    one, other = (sorted(path for path in (tmp_path / name).rglob("*") if path.is_file()) for name in "ab")
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


def test_a_store_of_a_store_is_not_reused_for_files(tmp_path: Path) -> None:
    make_photos(tmp_path / "photos", 6)
    made(tmp_path / "photos", tmp_path / "a", resize=(24,))
    made(tmp_path / "a", tmp_path / "b")
    with pytest.raises(UsageError, match="it was made from another store"):
        made(tmp_path / "photos", tmp_path / "c", Job(workers=1, reuse=str(tmp_path / "b")))


def test_several_sizes_are_not_one_source(tmp_path: Path) -> None:
    make_photos(tmp_path / "photos", 6)
    build(str(tmp_path / "photos"), str(tmp_path / "a"), [Recipe(resize=(16,)), Recipe(resize=(24,))], Job(workers=1))
    with pytest.raises(SourceError, match="holds the same samples at several sizes"):
        made(tmp_path / "a", tmp_path / "b")
    assert len(made(tmp_path / "a" / "24", tmp_path / "b")) == 6


def test_a_store_that_took_anothers_place_is_read_anew(tmp_path: Path) -> None:
    for count, name in ((5, "one"), (8, "two")):
        make_photos(tmp_path / name, count)
        build(str(tmp_path / name), str(tmp_path / "s"), Recipe(), Job(workers=1, overwrite=True))
        again = made(tmp_path / "s", tmp_path / f"again-{name}")
        assert len(again) == count
        assert contents(again).keys() == contents(packer_reader.open(tmp_path / "s")).keys()


def test_what_a_store_cannot_heed_is_refused(listed: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("b\na\n")
    made(listed, tmp_path / "a", ignore_label=0)
    with pytest.raises(UsageError, match="were built with --ignore-label 0: give it again"):
        made(tmp_path / "a", tmp_path / "b")
    with pytest.raises(UsageError, match="--classes gives classes an index, and a source of type store"):
        made(tmp_path / "a", tmp_path / "b", Job(workers=1, classes=str(tmp_path / "classes.txt")), ignore_label=0)
    with pytest.raises(UsageError, match="--field names columns of a list"):
        made(tmp_path / "a", tmp_path / "b", Job(workers=1, fields=("x=text:y",)), ignore_label=0)
    assert made(tmp_path / "a", tmp_path / "b", ignore_label=0).manifest.reencoded == {}
