"""Promises about masks: labels are never invented, blended or shifted, in the builder and in the reader's crops."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import webdataset
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

import packer_reader
from packer import Job, Recipe, build
from packer.cli.main import cli
from packer_reader import CenterCrop, HorizontalFlip, RandomResizedCrop, StreamDataset
from packer_reader.check import check_store
from packer_reader.crops import Draw
from packer_reader.errors import SourceError
from packer_reader.resize import nearest

if TYPE_CHECKING:
    from pathlib import Path

    from packer.recipe import Fit

LABELS = (0, 3, 7, 200)
COLOURS = {0: (220, 40, 40), 3: (40, 180, 60), 7: (50, 60, 210), 200: (235, 215, 60)}


def scene(height: int, width: int, seed: int) -> npt.NDArray[np.uint8]:
    """Labels in a few large patches."""
    coarse = np.random.default_rng(seed).choice(LABELS, (4, 5)).astype(np.uint8)
    return nearest(coarse, height, width)


def painted(mask: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The image that a mask describes exactly: each label has a colour of its own."""
    image = np.zeros((*mask.shape, 3), np.uint8)
    for label, colour in COLOURS.items():
        image[mask == label] = colour
    return image


def palette(mask: npt.NDArray[np.uint8]) -> Image.Image:
    picture = Image.fromarray(mask).convert("P")
    picture.putdata(mask.ravel().tolist())
    picture.putpalette([value for index in range(256) for value in (255 - index, index, 7)])
    return picture


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Palette masks, turned images, 16-bit ids, one mask of an odd size."""
    root = tmp_path_factory.mktemp("pairs")
    (root / "images").mkdir()
    (root / "masks").mkdir()
    for number in range(24):
        mask = scene(60 + number, 90 - number, number)
        image = Image.fromarray(painted(mask))
        if number % 3 == 1:  # stored lying, said to be turned
            exif = Image.Exif()
            exif[0x0112] = 6
            stored = image.transpose(Image.Transpose.ROTATE_90)
            stored.save(root / "images" / f"{number:02}.png", exif=exif)
        else:
            image.save(root / "images" / f"{number:02}.png")
        path = root / "masks" / f"{number:02}.png"
        if number == 5:
            Image.fromarray(mask[:-1]).save(path)
        elif number % 3 == 2:
            Image.fromarray(mask.astype(np.uint16) * 300).save(path)
        else:
            palette(mask).save(path)
    return root


def near(colours: npt.NDArray[Any], label: int, kind: int) -> npt.NDArray[np.bool_]:
    colour = COLOURS[label // 300 if kind == 2 else label]
    return np.asarray(np.abs(colours.astype(int) - colour).max(-1) < 60)


@pytest.mark.parametrize("container", ["tar", "lmdb"])
@pytest.mark.parametrize(
    ("fit", "size"),
    [("shorter", (40,)), ("stretch", (33, 47)), ("crop", (40, 40)), ("pad", (48, 48)), ("shorter", None)],
)
def test_masks_keep_their_labels_and_their_place(
    fit: Fit, size: tuple[int, ...] | None, container: Any, pairs: Path, tmp_path: Path
) -> None:
    recipe = Recipe(container=container, resize=size, fit=fit if size else "shorter")
    report = build(str(pairs), str(tmp_path / "o"), recipe, Job(workers=1))
    assert (report.found, report.written, report.skipped) == (24, 23, 1)
    assert json.loads((tmp_path / "o" / "errors.jsonl").read_text())["class"] == "mismatch"
    store = packer_reader.open(tmp_path / "o")
    mask_field = store.manifest.field("mask")
    assert mask_field is not None
    assert (mask_field.kind, mask_field.suffix, mask_field.dtype) == ("mask", "mask.png", "uint16")
    for number in range(len(store)):
        name = store.source(number)
        original = int(name.removeprefix("images/").removesuffix(".png"))
        image, mask = store[number]["image"], store[number]["mask"]
        assert mask.shape == image.shape[:2]
        allowed = {label * (300 if original % 3 == 2 else 1) for label in LABELS} | ({255} if fit == "pad" else set())
        assert set(np.unique(mask).tolist()) <= allowed
        check_aligned(image, mask, original % 3)


def check_aligned(image: npt.NDArray[Any], mask: npt.NDArray[Any], kind: int) -> None:
    """Colours and labels agree but within half a pixel of a border, where colours blend."""
    inner = np.ones(mask.shape, bool)
    for axis in (0, 1):
        for step in (-1, 1):
            inner &= np.roll(mask, step, axis) == mask
    inner[[0, -1]] = False
    inner[:, [0, -1]] = False
    for label in np.unique(mask).tolist():
        if label == 255:
            continue  # outside of the image
        here = inner & (mask == label)
        assert near(image[here], label, kind).all()


@pytest.mark.parametrize("crop", [RandomResizedCrop(31), CenterCrop(30), CenterCrop((20, 90)), None])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_readers_crops_take_masks_along(crop: Any, workers: int, pairs: Path, tmp_path: Path) -> None:
    build(str(pairs), str(tmp_path / "o"), Recipe(resize=(80, 80), fit="crop"), Job(workers=1))
    ds = StreamDataset(tmp_path / "o", batch_size=6, crop=crop, flip=HorizontalFlip(), with_id=True, seed=2)
    seen = 0
    for batch in DataLoader(ds, batch_size=None, num_workers=workers):
        assert batch["mask"].shape == (len(batch["image"]), *batch["image"].shape[2:])
        for image, mask, number in zip(batch["image"], batch["mask"], batch["id"].tolist(), strict=True):
            kind = int(ds.store.source(number)[7:9]) % 3
            labels = mask.numpy()
            assert set(np.unique(labels).tolist()) <= {n * (300 if kind == 2 else 1) for n in LABELS} | {255}
            check_aligned(image.permute(1, 2, 0).numpy(), labels, kind)
            seen += 1
    assert seen == 23


def test_a_mask_outside_of_the_image_is_ignored(pairs: Path, tmp_path: Path) -> None:
    build(str(pairs), str(tmp_path / "o"), Recipe(resize=(40, 40), fit="crop", ignore_label=254), Job(workers=1))
    batch = next(iter(StreamDataset(tmp_path / "o", batch_size=4, crop=CenterCrop(60))))
    assert (batch["mask"][:, :10] == 254).all()
    assert (batch["image"][:, :, :10] == 0).all()
    assert not (batch["mask"][:, 10:50, 10:50] == 254).any()


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
def test_nearest_is_pillows(height: int, width: int, rows: int, columns: int) -> None:
    pixels = np.random.default_rng(height * width).integers(0, 256, (height, width), np.uint8)
    by_pillow = np.asarray(Image.fromarray(pixels).resize((columns, rows), Image.Resampling.NEAREST))
    assert (nearest(pixels, rows, columns) == by_pillow).all()


def test_zero_labels_are_reduced_once(tmp_path: Path) -> None:
    for folder in ("images", "annotations"):
        (tmp_path / "s" / folder).mkdir(parents=True)
    mask = np.array([[0, 1], [150, 255]], np.uint8)
    Image.fromarray(mask).save(tmp_path / "s" / "annotations" / "a.png")
    Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(tmp_path / "s" / "images" / "a.jpg")
    build(str(tmp_path / "s"), str(tmp_path / "o"), Recipe(reduce_zero_label=True), Job(workers=1))
    assert packer_reader.open(tmp_path / "o")[0]["mask"].tolist() == [[255, 0], [149, 255]]


@pytest.mark.parametrize("text", ['{"1": 0, "150": 300}', "1,0\n150,300\n"])
def test_labels_are_mapped_and_others_ignored(text: str, tmp_path: Path) -> None:
    for folder in ("images", "masks"):
        (tmp_path / "s" / folder).mkdir(parents=True)
    Image.fromarray(np.array([[0, 1], [150, 255]], np.uint8)).save(tmp_path / "s" / "masks" / "a.png")
    Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(tmp_path / "s" / "images" / "a.jpg")
    (tmp_path / "map").write_text(text)
    arguments = ["build", str(tmp_path / "s"), str(tmp_path / "o"), "--label-map", str(tmp_path / "map")]
    assert CliRunner().invoke(cli, arguments, catch_exceptions=False).exit_code == 0
    assert packer_reader.open(tmp_path / "o")[0]["mask"].tolist() == [[255, 0], [300, 255]]


@pytest.mark.parametrize("text", ["", "{", "1,2,3", '{"1": "x"}', '{"70000": 1}', "1,2\n1,3", "a,b"])
def test_maps_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "map").write_text(text)
    arguments = ["build", str(tmp_path), str(tmp_path / "o"), "--label-map", str(tmp_path / "map")]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 2
    assert "--label-map" in done.output
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("turn", range(1, 9))
def test_masks_in_the_raw_frame_are_turned_with_their_image(turn: int, tmp_path: Path) -> None:
    mask = scene(60, 90, turn)
    exif = Image.Exif()
    exif[0x0112] = turn
    for folder in ("images", "masks"):
        (tmp_path / "s" / folder).mkdir(parents=True)
    Image.fromarray(painted(mask)).save(tmp_path / "s" / "images" / "a.png", exif=exif)
    Image.fromarray(mask).save(tmp_path / "s" / "masks" / "a.png")
    build(str(tmp_path / "s"), str(tmp_path / "o"), Recipe(), Job(workers=1))
    sample = packer_reader.open(tmp_path / "o")[0]
    if turn >= 5:  # those that change the sides say by their size which frame a mask is in
        assert (painted(sample["mask"]) == sample["image"]).all()
    else:
        assert (sample["mask"] == mask).all()


@pytest.mark.parametrize("text", ["0-7", "0, 3,7", "255,0-7"])
def test_unknown_labels_are_named(text: str, pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "map").write_text('{"0": 0, "3": 3, "7": 7, "200": 200}')
    arguments = ["build", str(pairs), str(tmp_path / "o"), "--check-labels", text, "--label-map", str(tmp_path / "map")]
    assert CliRunner().invoke(cli, arguments, catch_exceptions=False).exit_code == 3
    lines = [json.loads(line) for line in (tmp_path / "o" / "errors.jsonl").read_text().splitlines()]
    named = {line["name"] for line in lines if "has label 200 in" in line["reason"]}
    wanted = set()
    for number in range(24):
        if number != 5 and number % 3 != 2 and (scene(60 + number, 90 - number, number) == 200).any():
            wanted.add(f"images/{number:02}.png")
    assert named == wanted != set()
    assert list(check_store(tmp_path / "o", full=True)) == []


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "0-70000", "-1"])
def test_label_ranges_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["build", str(tmp_path), str(tmp_path / "o"), f"--check-labels={text}"])
    assert done.exit_code == 2
    assert "--check-labels is" in done.output


def _save(path: Path, mode: str, kind: str = "PNG", **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (8, 6)).save(path, kind, **options)


@pytest.mark.parametrize(
    ("image", "mask", "layout"),
    [
        ("JPEGImages/2007_1.jpg", "SegmentationClass/2007_1.png", "voc"),
        ("leftImg8bit/train/aachen/a_leftImg8bit.png", "gtFine/train/aachen/a_gtFine_labelIds.png", "cityscapes"),
        ("images/training/a.jpg", "annotations/training/a.png", "ade20k"),
        ("imagesTr/case_0000.png", "labelsTr/case.png", "nnunet"),
        ("imgs/x.y.jpg", "masks/x.y_mask.png", "kaggle"),
    ],
)
def test_known_layouts(image: str, mask: str, layout: str, tmp_path: Path) -> None:
    root = tmp_path / layout
    _save(root / image, "RGB")
    _save(root / mask, "L")
    if layout == "cityscapes":
        _save(root / mask.replace("labelIds", "color"), "RGBA")
    report = build(str(root), str(tmp_path / "o"), Recipe(), Job(workers=1))
    assert (report.found, report.written) == (1, 1)
    split = {"cityscapes": "train", "ade20k": "train"}.get(layout)
    assert packer_reader.open(tmp_path / "o", split=split).source(0) == image


@pytest.mark.parametrize(
    ("mode", "kind", "reason"),
    [
        ("RGB", "PNG", "mode RGB: labels are the indices of one channel"),
        ("L", "JPEG", "lossy picture, which invents labels"),
        ("F", "TIFF", "mode F"),
    ],
)
def test_masks_that_hold_no_labels_are_refused(mode: str, kind: str, reason: str, tmp_path: Path) -> None:
    _save(tmp_path / "s" / "images" / "a.png", "RGB")
    _save(tmp_path / "s" / "images" / "b.png", "RGB")
    _save(tmp_path / "s" / "masks" / "a.png", mode, kind)
    _save(tmp_path / "s" / "masks" / "b.png", "L")
    build(str(tmp_path / "s"), str(tmp_path / "o"), Recipe(), Job(workers=1))
    (line,) = (tmp_path / "o" / "errors.jsonl").read_text().splitlines()
    assert reason in json.loads(line)["reason"]


def test_pairs_that_are_none_are_named(tmp_path: Path) -> None:
    for name in ("images/a.jpg", "images/b.jpg", "images/b.png", "images/c.png", "images/d.png"):
        _save(tmp_path / "s" / name, "RGB")
    for name in ("masks/a.png", "masks/b.png", "masks/c.png", "masks/c.bmp", "masks/e.png"):
        _save(tmp_path / "s" / name, "L", name[-3:].upper())
    build(str(tmp_path / "s"), str(tmp_path / "o"), Recipe(), Job(workers=1))
    lines = (tmp_path / "o" / "errors.jsonl").read_text().splitlines()
    found = {line["name"]: line["reason"] for line in map(json.loads, lines)}
    assert found == {
        "images/b.jpg": "2 images have this name but for the extension",
        "images/b.png": "2 images have this name but for the extension",
        "images/c.png": "2 masks have this name but for the extension",
        "images/d.png": "no mask has this name",
    }
    _save(tmp_path / "n" / "images" / "a.jpg", "RGB")
    _save(tmp_path / "n" / "masks" / "b.png", "L")
    with pytest.raises(SourceError, match="no image in 'images' has a mask of the same name in 'masks'"):
        build(str(tmp_path / "n"), str(tmp_path / "no"), Recipe(), Job(workers=1))


@pytest.mark.usefixtures("careless_libraries")
def test_webdataset_reads_masks(pairs: Path, tmp_path: Path) -> None:
    build(str(pairs), str(tmp_path / "o"), Recipe(), Job(workers=1))
    shards = sorted(map(str, (tmp_path / "o").glob("*.tar")))
    samples = list(webdataset.WebDataset(shards, shardshuffle=False).to_tuple("png", "mask.png"))
    assert len(samples) == 23
    store = packer_reader.open(tmp_path / "o")
    for number, (_, mask) in enumerate(samples):
        assert (np.asarray(Image.open(io.BytesIO(mask))) == store[number]["mask"]).all()


def test_builds_with_masks_resume_to_the_same_bytes(pairs: Path, tmp_path: Path) -> None:
    for workers, name in ((1, "a"), (2, "b")):
        build(str(pairs), str(tmp_path / name), Recipe(resize=(32,), unit=4), Job(workers=workers, runner="processes"))
    one, other = (sorted(path for path in (tmp_path / name).rglob("*") if path.is_file()) for name in "ab")
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


def test_draws_agree_over_fields() -> None:
    cut = RandomResizedCrop(8).cut(50, 60, Draw(1, 2, 3))
    assert cut == RandomResizedCrop(8).cut(50, 60, Draw(1, 2, 3))
