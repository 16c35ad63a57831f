"""Promises about boxes: they follow their image through every resize, crop, pad and flip, and lead back."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

import packer_reader
from packer import Job, Recipe, build
from packer.fields import Extra
from packer.transforms.extras import store_extra
from packer.transforms.geometry import Frame, fit
from packer.transforms.image import open_image, store_image
from packer.transforms.picture import turned
from packer_reader import CenterCrop, HorizontalFlip, MapDataset, RandomResizedCrop, StreamDataset
from packer_reader.boxes import Boxes, cut_boxes
from packer_reader.crops import Draw
from packer_reader.errors import SampleError, SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from packer.recipe import Fit

FITS: list[tuple[Fit, tuple[int, ...] | None]] = [
    ("shorter", (48,)), ("longer", (64,)), ("stretch", (40, 72)), ("crop", (40, 40)), ("pad", (64, 64)),
    ("shorter", None),
]  # fmt: skip


def stored(boxes: npt.NDArray[Any], size: tuple[int, int], recipe: Recipe) -> dict[str, Any]:
    value = {"boxes": boxes.tolist(), "labels": list(range(len(boxes))), "iscrowd": [0] * len(boxes)}
    data, _ = store_extra(Extra("boxes", "boxes"), value, Frame(size), fit(*size, recipe), recipe)
    found: dict[str, Any] = json.loads(data)
    return found


def sides(draw: st.DrawFn, size: int) -> tuple[float, float]:
    start = draw(st.floats(0, size - 2))
    return start, draw(st.floats(start + 1.5, size))


@st.composite
def drawn(draw: st.DrawFn) -> tuple[tuple[int, int], npt.NDArray[np.float64]]:
    height, width = draw(st.integers(20, 200)), draw(st.integers(20, 200))
    boxes = []
    for _ in range(draw(st.integers(1, 5))):
        (x1, x2), (y1, y2) = sides(draw, width), sides(draw, height)
        boxes.append([x1, y1, x2, y2])
    return (height, width), np.array(boxes)


@settings(deadline=None, max_examples=400)
@given(drawn(), st.sampled_from(FITS))
def test_boxes_lead_there_and_back(
    scene: tuple[tuple[int, int], npt.NDArray[np.float64]], way: tuple[Fit, tuple[int, ...] | None]
) -> None:
    size, boxes = scene
    fitting, resize = way
    recipe = Recipe(resize=resize, fit=fitting if resize else "shorter", min_box_size=0)
    found = stored(boxes, size, recipe)
    geometry = fit(*size, recipe)
    assert found["orig_size"] == list(size)
    (sx, _, tx), (_, sy, ty) = found["affine"]
    shift, scale = np.array([tx, ty, tx, ty]), np.array([sx, sy, sx, sy])
    above, before = geometry.pad
    frame = np.array([before, above, before + geometry.crop[3], above + geometry.crop[2]])
    for label, box in zip(found["labels"], found["boxes"], strict=True):
        back = (np.array(box) - shift) / scale
        inside = (frame - shift) / scale
        wanted = boxes[label].clip(np.tile(inside[:2], 2), np.tile(inside[2:], 2))
        assert np.abs(back - wanted).max() < 1e-3


def rendering(box: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    image = np.zeros((*size, 3), np.uint8)
    x1, y1, x2, y2 = box.astype(int)
    image[y1:y2, x1:x2] = 255
    return image


def extent(image: npt.NDArray[Any]) -> npt.NDArray[np.float64] | None:
    """The box of what is white, borders by how much of their pixels is."""
    bright = image[..., 0].astype(float) / 255
    if bright.max() < 0.9:
        return None
    rows, columns = bright.max(1), bright.max(0)
    y, x = np.flatnonzero(rows > 0.5), np.flatnonzero(columns > 0.5)
    return np.array([x[0], y[0], x[-1] + 1, y[-1] + 1], float) if len(x) and len(y) else None


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("fitting", "resize"), FITS)
def test_boxes_agree_with_a_resized_rendering(fitting: Fit, resize: Any, count: int) -> None:
    recipe = Recipe(resize=resize, fit=fitting if resize else "shorter", encode="raw", min_box_size=0)
    rng = np.random.default_rng(count)
    compared = 0
    for _ in range(count):
        height, width = rng.integers(30, 120, 2).tolist()
        x1, y1 = int(rng.integers(0, width - 12)), int(rng.integers(0, height - 12))
        box = np.array([x1, y1, rng.integers(x1 + 10, width), rng.integers(y1 + 10, height)])
        pixels = rendering(box, (height, width))
        image = store_image(pixels, open_image(pixels, recipe), "npy", recipe)
        seen = extent(np.load(io.BytesIO(image.data)))
        value = {"boxes": [box.tolist()], "labels": [0]}
        data, _ = store_extra(Extra("boxes", "boxes"), value, Frame((height, width)), image.geometry, recipe)
        found = np.array(json.loads(data)["boxes"]).reshape(-1, 4)
        if seen is not None and len(found):
            assert np.abs(found[0] - seen).max() <= 1
            compared += 1
    assert compared > 0.9 * count


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures that show their one box; sparse category ids; two splits."""
    root = tmp_path_factory.mktemp("coco")
    (root / "annotations").mkdir()
    rng = np.random.default_rng(0)
    categories = [{"id": 90, "name": "zebra"}, {"id": 3, "name": "car"}, {"id": 17, "name": "cat"}]
    for split, count in (("train2017", 30), ("val2017", 6)):
        (root / split).mkdir()
        document: dict[str, Any] = {"images": [], "annotations": [], "categories": categories}
        for number in range(count):
            height, width = rng.integers(60, 200, 2).tolist()
            x1, y1 = int(rng.integers(0, width // 2)), int(rng.integers(0, height // 2))
            x2, y2 = int(rng.integers(x1 + 12, width)), int(rng.integers(y1 + 12, height))
            name = f"{number:012}.png"
            Image.fromarray(rendering(np.array([x1, y1, x2, y2]), (height, width))).save(root / split / name)
            document["images"].append({"id": number * 7, "file_name": name, "height": height, "width": width})
            if number % 5:
                annotation = {"image_id": number * 7, "category_id": [3, 17, 90][number % 3]}
                document["annotations"].append(annotation | {"bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": 0})
        document["annotations"] += [
            {"image_id": 7, "category_id": 3, "bbox": [5, 5, 0, 9]},
            {"image_id": 7, "category_id": 4, "bbox": [5, 5, 3, 9]},
            {"image_id": 1, "category_id": 3, "bbox": [5, 5, 3, 9]},
            {"image_id": 7, "category_id": 3, "bbox": [float("nan"), 5, 3, 9]},
        ]
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(document))
    return root


@pytest.mark.parametrize("container", ["tar", "lmdb"])
@pytest.mark.parametrize(("fitting", "resize"), FITS)
def test_boxes_agree_with_what_the_stored_image_shows(
    fitting: Fit, resize: Any, container: Any, coco: Path, tmp_path: Path
) -> None:
    recipe = Recipe(container=container, resize=resize, fit=fitting if resize else "shorter")
    report = build(str(coco), str(tmp_path / "o"), recipe, Job(workers=1))
    assert (report.found, report.written, sorted(report.splits)) == (36, 36, ["train", "val"])
    store = packer_reader.open(tmp_path / "o", split="train")
    assert store.classes == ("car", "cat", "zebra")
    empty = 0
    for number in range(len(store)):
        sample, name = store[number], int(store.source(number)[-16:-4])
        boxes = np.array(sample["boxes"]["boxes"]).reshape(-1, 4)
        if name % 5 == 0:
            assert len(boxes) == 0
            empty += 1
            continue
        seen = extent(sample["image"])
        if seen is not None and len(boxes):
            assert np.abs(boxes[0] - seen).max() <= 1
            assert sample["boxes"]["labels"] == [name % 3]
        else:
            assert seen is None or len(boxes)
    assert empty == 6


@pytest.mark.parametrize("crop", [None, RandomResizedCrop(40, scale=(0.3, 1)), CenterCrop(50), CenterCrop((20, 90))])
@pytest.mark.parametrize("workers", [0, 2])
def test_boxes_follow_the_readers_crops(crop: Any, workers: int, coco: Path, tmp_path: Path) -> None:
    build(str(coco), str(tmp_path / "o"), Recipe(resize=(64, 64), fit="stretch"), Job(workers=1))
    flip = HorizontalFlip()
    ds = StreamDataset(tmp_path / "o", split="train", batch_size=7, crop=crop, flip=flip, with_id=True, seed=5)
    checked = 0
    for batch in DataLoader(ds, batch_size=None, num_workers=workers):
        found = batch["boxes"]
        assert isinstance(found, Boxes)
        assert len(found) == len(found.to_list()) == len(batch["image"])
        assert (found.boxes.dtype, found.labels.dtype) == (torch.float32, torch.int64)
        for image, boxes in zip(batch["image"], found.to_list(), strict=True):
            seen = extent(image.permute(1, 2, 0).numpy())
            if seen is not None and len(boxes["boxes"]):
                assert np.abs(boxes["boxes"][0].numpy() - seen).max() <= 1.01
                checked += 1
    assert checked > 10


def test_ten_thousand_boxes_stay_in_the_frame() -> None:
    rng = np.random.default_rng(1)
    corners = rng.uniform(0, 100, (10_000, 2, 2))
    boxes = np.concatenate([corners.min(1), corners.max(1)], axis=1).astype(np.float32)
    labels = np.arange(10_000)
    for sample in range(20):
        cut = RandomResizedCrop((30, 50)).cut(100, 100, Draw(0, 0, sample))
        found, left = cut_boxes(boxes, labels, cut, flipped=bool(sample % 2), least=1, visible=0.1)
        assert found.min() >= 0
        assert (found[:, 2] <= 50).all()
        assert (found[:, 3] <= 30).all()
        assert ((found[:, 2:] - found[:, :2]) >= 1).all()
        assert len(found) == len(left) > 0


def test_small_and_hidden_boxes_are_dropped_with_their_labels() -> None:
    boxes = np.array([[0, 0, 50, 50], [10, 10, 10.5, 40], [0, 0, 30, 26], [20, 20, 80, 80]])
    recipe = Recipe(resize=(50, 50), fit="crop", min_box_size=2, min_visibility=0.25)
    found = stored(boxes, (50, 100), recipe)  # what is left of 25 and right of 75 is cut off
    assert found["labels"] == [0, 3]
    assert found["iscrowd"] == [0, 0]


@pytest.mark.parametrize("turn", range(5, 9))
def test_boxes_in_the_raw_frame_are_turned_with_their_image(turn: int) -> None:
    recipe, rng = Recipe(), np.random.default_rng(turn)
    for _ in range(50):
        height, width = rng.integers(20, 90, 2).tolist()
        if height == width:
            continue
        x1, y1 = rng.integers(0, width - 6), rng.integers(0, height - 6)
        box = np.array([x1, y1, rng.integers(x1 + 2, width), rng.integers(y1 + 2, height)])
        upright = turned(rendering(box, (height, width)), turn)
        value = {"boxes": [box.tolist()], "labels": [0], "size": [height, width]}
        frame = Frame(upright.shape[:2], turn)
        data, _ = store_extra(Extra("boxes", "boxes"), value, frame, fit(*frame.size, recipe), recipe)
        assert json.loads(data)["boxes"] == [extent(upright).tolist()]  # type: ignore[union-attr]


def test_annotations_of_another_size_are_refused() -> None:
    recipe = Recipe()
    value = {"boxes": [[0, 0, 1, 1]], "labels": [0], "size": [20, 10]}
    with pytest.raises(SampleError, match="the annotations are of 10 x 20 pixels, the upright image has 20 x 10"):
        store_extra(Extra("boxes", "boxes"), value, Frame((10, 20)), fit(10, 20, recipe), recipe)


def test_one_file_and_what_is_wrong_with_it(coco: Path, tmp_path: Path) -> None:
    said = list[str]()

    class Listener:
        def begin(self, what: str, total: int) -> None: ...

        def advance(self, samples: int, source_bytes: int, skipped: int) -> None: ...

        def say(self, text: str) -> None:
            said.append(text)

    document = json.loads((coco / "annotations" / "instances_val2017.json").read_text())
    document["images"] += [
        {"id": 900, "file_name": "gone.png"}, {"id": 901, "file_name": "../x.png"}, {"id": 902},
    ]  # fmt: skip
    (coco / "val2017" / "boxes.json").write_text(json.dumps(document))
    report = build(
        str(coco / "val2017" / "boxes.json"), str(tmp_path / "o"), Recipe(), Job(workers=1, watcher=Listener())
    )
    assert (report.found, report.written, report.errors) == (9, 6, {"vanished": 1, "no-path": 2})
    assert said == ["4 annotations are no boxes, or of no image or category, and were left out"]
    sample = MapDataset(tmp_path / "o")[0]
    assert set(sample["boxes"]) == {"boxes", "labels"}
    for text in ("{", "[]", '{"images": [1], "annotations": [], "categories": []}', '{"images": []}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(SourceError):
            build(str(tmp_path / "bad.json"), str(tmp_path / "p"), Recipe(), Job(workers=1, source_type="coco"))


def annotated(root: Path, kind: str, *, split: str = "") -> npt.NDArray[np.float64]:
    """Pictures that show their one box, with a file each; the boxes of 8 images, none of every fourth."""
    rng = np.random.default_rng(2)
    images, notes = (root / "JPEGImages", root / "Annotations") if kind == "voc" else (root / "images", root / "labels")
    boxes = np.zeros((8, 4))
    for folder in (images / split, notes / split):
        folder.mkdir(parents=True)
    for number in range(8):
        height, width = rng.integers(60, 120, 2).tolist()
        x1, y1 = int(rng.integers(0, width // 2)), int(rng.integers(0, height // 2))
        x2, y2 = int(rng.integers(x1 + 12, width)), int(rng.integers(y1 + 12, height))
        boxes[number] = [x1, y1, x2, y2]
        Image.fromarray(rendering(boxes[number], (height, width))).save(images / split / f"{number}.png")
        if number % 4 == 0:
            continue
        if kind == "yolo":
            sides = [(x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height]
            text = f"{number % 2} " + " ".join(map(repr, sides)) + "\n1 0.5 0.5 nan 0.1\n0 0.5\n2 0.1 0.1 1.5 0.1\n"
            (notes / split / f"{number}.txt").write_text(text)
        else:
            corners = zip(("xmin", "ymin", "xmax", "ymax"), (x1 + 1, y1 + 1, x2, y2), strict=True)
            box = "".join(f"<{name}>{value}</{name}>" for name, value in corners)
            size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
            good = f"<object><name>{'ab'[number % 2]}</name><bndbox>{box}</bndbox></object>"
            bad = "<object><name>a</name><bndbox><xmin>x</xmin></bndbox></object>"
            (notes / split / f"{number}.xml").write_text(f"<annotation>{size}{good}{bad}</annotation>")
    return boxes


@pytest.mark.parametrize("kind", ["yolo", "voc"])
@pytest.mark.parametrize("split", ["", "train"])
def test_boxes_in_a_file_for_each_image(kind: str, split: str, tmp_path: Path) -> None:
    wanted = annotated(tmp_path / "s", kind, split=split)
    if kind == "yolo":
        (tmp_path / "s" / "data.yaml").write_text("names:\n  0: a\n  1: b\n")
    report = build(str(tmp_path / "s"), str(tmp_path / "o"), Recipe(resize=(40, 40), fit="stretch"), Job(workers=1))
    assert (report.found, report.written) == (8, 8)
    store = packer_reader.open(tmp_path / "o", split=split or None)
    assert store.manifest.source["type"] == kind
    assert store.classes == ("a", "b")
    for number in range(8):
        sample, name = store[number], int(store.source(number)[-5])
        boxes = sample["boxes"]
        if name % 4 == 0:
            assert boxes["boxes"] == boxes["labels"] == []
            continue
        (sx, _, tx), (_, sy, ty) = boxes["affine"]
        back = (np.array(boxes["boxes"][0]) - [tx, ty, tx, ty]) / [sx, sy, sx, sy]
        assert np.abs(back - wanted[name]).max() < 1e-3
        assert boxes["labels"] == [name % 2]
        seen = extent(sample["image"])
        assert seen is not None
        assert np.abs(np.array(boxes["boxes"][0]) - seen).max() <= 1


def test_names_and_odd_files(tmp_path: Path) -> None:
    annotated(tmp_path / "y", "yolo")
    build(str(tmp_path / "y"), str(tmp_path / "a"), Recipe(), Job(workers=1))
    assert packer_reader.open(tmp_path / "a").classes == ("0", "1")
    (tmp_path / "y" / "classes.txt").write_text("x\ny\n")
    build(str(tmp_path / "y"), str(tmp_path / "b"), Recipe(), Job(workers=1))
    assert packer_reader.open(tmp_path / "b").classes == ("x", "y")
    (tmp_path / "y" / "classes.txt").unlink()
    (tmp_path / "y" / "data.yaml").write_text("names: {3: a}")
    with pytest.raises(SourceError, match="`names` must be a list"):
        build(str(tmp_path / "y"), str(tmp_path / "c"), Recipe(), Job(workers=1))
    annotated(tmp_path / "v", "voc")
    (tmp_path / "v" / "Annotations" / "1.xml").write_text("<annotation>")
    (tmp_path / "v" / "SegmentationClass").mkdir()
    with pytest.raises(SourceError, match=r"may be voc or pairs: say which, --from voc\|pairs"):
        build(str(tmp_path / "v"), str(tmp_path / "d"), Recipe(), Job(workers=1))
    report = build(str(tmp_path / "v"), str(tmp_path / "d"), Recipe(), Job(workers=1, source_type="voc"))
    assert (report.written, report.errors) == (7, {"corrupt": 1})


def test_boxes_of_a_batch_are_a_sequence() -> None:
    values = [(np.full((count, 4), count, np.float32), np.full(count, count)) for count in (2, 0, 1)]
    boxes = Boxes.of(values)
    assert [one["labels"].tolist() for one in boxes] == [[2, 2], [], [1]]
    assert [boxes[place]["labels"].tolist() for place in (0, 1, 2, -1, -3)] == [[2, 2], [], [1], [1], [2, 2]]
    for place in (3, -4):
        with pytest.raises(IndexError, match=f"there is no image {place} in a batch of 3"):
            boxes[place]
