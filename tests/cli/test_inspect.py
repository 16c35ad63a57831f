"""Promises of `packer inspect`: what a store holds can be looked at, and told from what another one holds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from packer import Job, Recipe, build, tokenized
from tests.conftest import make_serials
from tests.text.documents import built, words, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def drawn(run: Callable[..., Any], store: Path, sheet: Path, count: int = 4) -> np.ndarray[Any, Any]:
    """The sheet of some samples, (h, w, 3)."""
    run("inspect", store, "--samples", count, "-o", sheet)
    return np.asarray(Image.open(sheet).convert("RGB"))


def test_a_sheet_shows_samples_of_the_whole_store(run: Callable[..., Any], store: Path, tmp_path: Path) -> None:
    shown = drawn(run, store, tmp_path / "sheet.png", 9)
    assert shown.shape == (3 * 192 + 6, 3 * 166 + 6, 3)
    cells = [shown[6 + 192 * row :][:160, 6 + 166 * column :][:, :160] for row in range(3) for column in range(3)]
    assert all(len(np.unique(cell.reshape(-1, 3), axis=0)) > 1 for cell in cells)
    assert len({cell.tobytes() for cell in cells}) == 9
    listed = json.loads(run("inspect", store, "--samples", 9, "--json").stdout)["samples"]
    numbers = [sample["sample"] for sample in listed]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 0
    assert numbers[-1] == len(json.loads(run("inspect", store, "--samples", 1024, "--json").stdout)["samples"]) - 1


def test_masks_and_boxes_are_drawn_over_their_image(run: Callable[..., Any], tmp_path: Path) -> None:
    gray = np.full((64, 64, 3), 128, np.uint8)
    mask = np.zeros((64, 64), np.uint8)
    mask[32:] = 3
    mask[:, 48:] = 255
    for folder, pixels in (("images", gray), ("masks", mask)):
        (tmp_path / "pairs" / folder).mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / "pairs" / folder / "a.png")
    build(str(tmp_path / "pairs"), str(tmp_path / "m"), Recipe(), Job(workers=1))
    cell = drawn(run, tmp_path / "m", tmp_path / "m.png", 1)[6:166, 6:166]
    picture = cell[48:112, 48:112]  # in the middle of its cell
    colours = {name: tuple(picture[place].tolist()) for name, place in
               {"nothing": (5, 5), "label": (60, 5), "ignored": (60, 60)}.items()}  # fmt: skip
    assert colours["nothing"] == colours["ignored"] == (128, 128, 128)
    assert max(abs(value - 128) for value in colours["label"]) > 20
    for folder in ("train2017", "annotations"):
        (tmp_path / "coco" / folder).mkdir(parents=True)
    Image.fromarray(gray).save(tmp_path / "coco" / "train2017" / "a.png")
    document = {
        "images": [{"id": 1, "file_name": "a.png", "height": 64, "width": 64}],
        "categories": [{"id": 7, "name": "x"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 7, "bbox": [10, 20, 30, 25]}],
    }
    (tmp_path / "coco" / "annotations" / "instances_train2017.json").write_text(json.dumps(document))
    build(str(tmp_path / "coco"), str(tmp_path / "b"), Recipe(encode="png"), Job(workers=1))
    picture = drawn(run, tmp_path / "b" / "train", tmp_path / "b.png", 1)[54:118, 54:118]
    outline = np.argwhere((picture != 128).any(2))
    assert outline.min(0).tolist() == [20, 10]
    assert outline.max(0).tolist() == [45, 40]
    assert (picture[30, 20] == 128).all()


@pytest.mark.parametrize("pack", ["none", "concat"])
def test_tokens_are_shown_as_text(pack: Any, run: Callable[..., Any], tmp_path: Path) -> None:
    text = tokenized(pack=pack, seq_len=None if pack == "none" else 128)
    built(write(tmp_path / "d.jsonl", [f"hello number {n}, " * 5 for n in range(20)]), tmp_path / "o", text)
    shown = drawn(run, tmp_path / "o", tmp_path / "sheet.png")
    page = shown[6:166, 6:326]
    assert 0.005 < (page < 100).all(2).mean() < 0.3
    samples = json.loads(run("inspect", tmp_path / "o", "--samples", 3, "--json").stdout)["samples"]
    assert all("hello number" in sample["text"] for sample in samples[:2])  # the last one may be short
    assert run("inspect", tmp_path / "o", "--samples", 3).stdout.count("hello number") >= 2


def test_the_difference_of_two_stores_is_named(run: Callable[..., Any], tmp_path: Path) -> None:
    source = make_serials(tmp_path / "src", 12)
    build(str(source), str(tmp_path / "a"), Recipe(), Job(workers=1))
    files = sorted(source.rglob("*.png"))
    Image.new("RGB", (9, 9)).save(files[0])
    files[1].unlink()
    Image.new("RGB", (9, 9), "red").save(files[2].with_name("new.png"))
    build(str(source), str(tmp_path / "b.lmdb"), Recipe(container="lmdb", seed=4, meta=True), Job(workers=1))
    build(str(source), str(tmp_path / "c"), Recipe(seed=9), Job(workers=1))
    build(str(source), str(tmp_path / "d.lmdb"), Recipe(container="lmdb"), Job(workers=1))
    build(str(source), str(tmp_path / "e"), Recipe(), Job(workers=1))

    def difference(one: str, other: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(run("inspect", tmp_path / one, "--diff", tmp_path / other, "--json").stdout)
        return found

    found = difference("a", "c")
    names = [path.relative_to(source).as_posix() for path in files]
    assert found["recipe"] == {"seed": [0, 9]}
    assert (found["same"], found["samples"]["equal"]) == (False, 10)
    assert found["samples"]["names"]["changed"] == [names[0]]
    assert found["samples"]["names"]["only_first"] == [names[1]]
    assert found["samples"]["names"]["only_second"] == [names[2].rpartition("/")[0] + "/new.png"]
    found = difference("c", "b.lmdb")
    assert found["fields"] == {"meta": [None, "json, json,  []"]}
    assert found["samples"]["changed"] == 12
    assert difference("d.lmdb", "e")["same"]  # containers do not count
    assert difference("d.lmdb", "e")["samples"]["equal"] == 12
    lines = run("inspect", tmp_path / "a", "--diff", tmp_path / "c").stdout
    assert f"1 differ, {names[0]!r}" in lines
    assert "not the same in the same order" in lines


def test_sequences_are_compared_as_a_whole(run: Callable[..., Any], tmp_path: Path) -> None:
    source = write(tmp_path / "d.jsonl", words(40))
    for name, length in (("a", 64), ("b", 64), ("c", 65)):
        built(source, tmp_path / name, tokenized(pack="concat", seq_len=length))
    same = json.loads(run("inspect", tmp_path / "a", "--diff", tmp_path / "b", "--json").stdout)
    assert (same["same"], same["samples"], same["recipe"]) == (True, None, {})
    other = run("inspect", tmp_path / "a", "--diff", tmp_path / "c").stdout
    assert "cannot be told apart by their names" in other
    assert "not the same in the same order" in other


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samples", 0], "--samples is 0"),
        (["--samples", 2, "--sample", 0], "one at a time"),
        (["-o", "x.png"], "-o draws samples"),
        (["--batch", "0:0"], "--batch goes with --batch-size"),
        (["--rank", 1], "options of a run are about a batch"),
        (["--samples", 2, "-o", "x.tiff"], "is no picture's name"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: list[Any], message: str, run: Callable[..., Any], tar_store: Path
) -> None:
    assert message in run("inspect", tar_store, *arguments, exit_code=2).stderr
    assert "does not exist" in run("inspect", tar_store, "--diff", "nowhere", exit_code=4).stderr
