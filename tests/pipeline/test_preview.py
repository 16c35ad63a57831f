"""Promises of `packer plan`: sizes by headers, copies and leaks by content, masks, and a command that works."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import packer_reader
from packer.preview.contents import Contents, candidates
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
    found = plan(make_serials(tmp_path / "s", 30))
    assert found["remarks"] == []
    assert found["survey"]["compared"] == found["survey"]["comparable"]


def test_what_is_in_two_splits_is_said(plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    make_serials(tmp_path / "train", 9)
    make_serials(tmp_path / "val", 9, start=100)
    shutil.copy(tmp_path / "train" / "a" / "00000.png", tmp_path / "val" / "a" / "leak.png")
    found = plan(tmp_path)
    (leak,) = found["survey"]["leaks"]
    assert (leak["splits"], leak["contents"]) == (["train", "val"], 1)
    assert leak["examples"] == [["train/a/00000.png", "val/a/leak.png"]]
    assert any("1 contents are in both train and val" in remark for remark in found["remarks"])


def test_copies_leak_through_a_split_that_val_makes(plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    source = make_serials(tmp_path / "s", 40)
    for path in list((source / "a").iterdir()):
        shutil.copy(path, path.with_name(f"again{path.name}"))
    (leak,) = plan(source, "--val", "0.5")["survey"]["leaks"]
    assert leak["contents"] > 0
    assert plan(source)["survey"]["leaks"] == []


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
    source = masked(tmp_path / "s", (0, 255))
    Image.new("L", (16, 16)).save(source / "masks" / "3.png")  # nothing is in this one
    found = plan(source, "--from", "pairs")
    assert found["survey"]["masks"] == {"looked": 6, "lossy": 0, "empty": 1, "binary": 5}
    assert any("masks hold only 0 and 255" in remark for remark in found["remarks"])
    (tmp_path / "map.json").write_text('{"0": 0, "255": 1}')
    mapped = plan(source, "--from", "pairs", "--label-map", tmp_path / "map.json")
    assert mapped["remarks"] == []  # what is advised is enough


@pytest.mark.parametrize("values", [(0, 1), (0, 1, 255), (0,)])
def test_masks_of_classes_are_not(plan: Callable[..., dict[str, Any]], tmp_path: Path, values: tuple[int, ...]) -> None:
    found = plan(masked(tmp_path / "s", values), "--from", "pairs")
    assert found["survey"]["masks"]["binary"] == 0
    assert not [remark for remark in found["remarks"] if "masks" in remark]


def test_masks_in_jpeg_are_said(plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    found = plan(masked(tmp_path / "s", (0, 1, 2), "jpg"), "--from", "pairs")
    assert found["survey"]["masks"]["lossy"] == 6
    assert any("6 of 6 masks are lossy pictures" in remark for remark in found["remarks"])
    assert found["command"] == ""  # it would convert nothing


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda root: masked(root, (0, 1)), ["--from", "pairs", "--val", "0.5"]),
        (lambda root: write(root.with_suffix(".jsonl"), [f"no. {n}" for n in range(60)]), ["--val", "0.3"]),
        (lambda root: numbered(root, 50), ["--val", "0.3"]),
        (lambda root: make_serials(root / "train", 9, "").parent, []),
    ],
    ids=["masks", "text", "numbers", "no classes"],
)
def test_splits_without_class_names_are_planned(
    make: Callable[[Path], Path], options: list[str], plan: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    source = make(tmp_path / "s")
    if not options:
        make_serials(tmp_path / "s" / "val", 5, "", start=50)
    found = plan(source, *options)
    assert len(found["splits"]) == 2


def numbered(root: Path, count: int) -> Path:
    """A list whose labels are whole numbers, the last of which stands once."""
    make_serials(root, count, "")
    rows = [f"{path.name},{number % 3 if number else 7}" for number, path in enumerate(sorted(root.iterdir()))]
    (root / "list.csv").write_text("path,label\n" + "\n".join(rows) + "\n")
    return root / "list.csv"


def test_a_class_that_a_split_lacks_is_known_by_its_number(plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    assert plan(numbered(tmp_path, 50), "--val", "0.3")["missing"] in ({"train": ["7"]}, {"val": ["7"]})


SIZES = st.lists(st.tuples(st.integers(0, 6), st.integers(-2, 2)), max_size=60)


@given(SIZES, st.integers(1, 80))
def test_candidates_are_all_that_may_be_equal(files: list[tuple[int, int]], most: int) -> None:
    sizes, crcs = np.array([s for s, _ in files], np.uint64), np.array([c for _, c in files], np.int64)
    numbers, considered = candidates(sizes, crcs, 0, most)
    assert len(set(numbers.tolist())) == len(numbers) <= considered <= max(2 * most, len(files) // most)
    if considered < len(files):
        return

    def may_be_equal(one: int, other: int) -> bool:
        same_crc = crcs[one] < 0 or crcs[other] < 0 or crcs[one] == crcs[other]
        return bool(one != other and sizes[one] == sizes[other] and same_crc)

    expected = {one for one in range(len(files)) if any(may_be_equal(one, other) for other in range(len(files)))}
    assert expected <= set(numbers.tolist())
    assert {number for number in numbers.tolist() if np.sum(sizes == sizes[number]) < 2} == set()


@given(SIZES)
def test_repeated_contents_are_those_with_equal_hashes(noted: list[tuple[int, int]]) -> None:
    contents = Contents(np.arange(len(noted)))
    for number, (content, label) in enumerate(noted):
        contents.note(number, content.to_bytes(16, "little"), label)
    found = {tuple(members.tolist()): labels.tolist() for members, labels in contents.repeated()}
    groups: dict[int, list[int]] = {}
    for number, (content, _label) in enumerate(noted):
        groups.setdefault(content, []).append(number)
    assert found == {
        tuple(members): [noted[number][1] for number in members] for members in groups.values() if len(members) > 1
    }
    assert list(found) == sorted(found)


def test_a_leak_between_an_archive_and_a_folder_is_found(
    plan: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packer.preview.survey._OPENED", 1)
    make_serials(tmp_path / "loose", 9)
    make_serials(tmp_path / "s" / "val", 9, start=100)
    shutil.copy(tmp_path / "loose" / "a" / "00000.png", tmp_path / "s" / "val" / "a" / "leak.png")
    shutil.make_archive(str(tmp_path / "s" / "train"), "zip", tmp_path / "loose")
    (leak,) = plan(tmp_path / "s")["survey"]["leaks"]
    assert leak["contents"] == 1


def test_what_was_not_compared_is_said(run: Callable[..., Any], tmp_path: Path) -> None:
    source = make_serials(tmp_path / "s", 400)  # most have one size
    assert "looked" not in run("plan", source).stdout
    assert "looked    at no sample (--look 0)" in run("plan", source, "--look", 0).stdout
    brief = run("plan", source, "--look", 1e-9).stdout
    assert re.search(r"looked    compared [12][0-9]{2} of [34][0-9]{2} samples that may be copies \(--look inf", brief)


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
    assert options["--size"] == "16MB"
    words = shlex.split(found["command"])
    assert words[:2] == ["packer", "shard"]
    assert words[-2:] == [".", "../a b-shards"]
    assert {"--gray", "--no-shuffle"} <= set(words)
    run(*words[1:], "--workers", "1", "--quiet")
    store = packer_reader.open(tmp_path / "a b-shards", split="train")
    assert store.manifest.fields[0].shape == (256, 320, 1)
    assert not store.manifest.shuffled


def test_what_is_given_is_not_suggested(plan: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    picture(400, 500).save(tmp_path / "a.jpg")
    found = plan(tmp_path, "--resize", "128", "--encode", "png", "--size", "1MB")
    assert found["suggestions"] == []
    assert found["command"].startswith("packer shard --resize 128 --encode png --size 1MB ")


@given(st.floats(1e3, 1e6), st.floats(1, 1e5), st.floats(1e6, 1e10), st.integers(1, 10**8))
def test_raw_is_suggested_where_it_is_read_faster(size: float, decoded: float, disk: float, samples: int) -> None:
    room = 10**9
    speeds = Speeds(size, 8 * size, 10.0, decoded, disk, copied=1e10, room=room)

    def rate(each: float) -> float:
        return 1 / (each / (1e10 if round((each + 10) * samples) <= room else disk) + 5e-6)

    encoded = min(decoded, rate(size))
    found = codec_for(speeds, samples, "jpg")
    assert found is not None
    assert (found.value == "raw") == (rate(8 * size) >= 1.5 * encoded and samples / encoded > 2)


def test_nothing_is_suggested_of_a_disk_that_nobody_knows() -> None:
    assert codec_for(Speeds(1e5, 1e6, 0, 1000, disk=0, copied=1e10, room=10**9), 10**6, "jpg") is None


@given(st.floats(1, 1e16))
def test_shards_are_neither_few_nor_countless(store_bytes: float) -> None:
    size = int(shards_for(store_bytes).value.removesuffix("MB")) * 10**6
    assert 16_000_000 <= size <= 1_024_000_000
    assert size == 16_000_000 or store_bytes / size > 32
