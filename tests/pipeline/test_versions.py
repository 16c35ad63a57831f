"""New versions of a data set: several sources, classes that stay, copies of what has not changed, names withheld."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import packer_reader
from packer import Job, Recipe, build
from packer.sources.files import read_ref
from packer_reader.errors import DamageError, NotAStoreError, OutputError, SourceError, UsageError
from tests.conftest import make_photos, make_serials, serial_of
from tests.faults import flip_byte, tree

if TYPE_CHECKING:
    from pathlib import Path

    from packer.sample import Ref

ONE = Job(workers=1)


def labels_of(path: Path) -> dict[str, int]:
    store = packer_reader.open(path)
    return {store.source(n): int(store[n]["label"]) for n in range(len(store))}


def test_several_sources_are_laid_over_each_other(tmp_path: Path) -> None:
    one, two = make_serials(tmp_path / "one", 6, "ac"), make_serials(tmp_path / "two", 6, "bc", start=6)
    report = build([str(one), str(two)], str(tmp_path / "o"), Recipe(), ONE)
    store = packer_reader.open(tmp_path / "o")
    assert (report.found, store.classes) == (12, ("a", "b", "c"))
    assert sorted(serial_of(store[n]["image"]) for n in range(12)) == list(range(12))
    assert labels_of(tmp_path / "o")["b/00006.png"] == 1


def test_sources_with_names_in_common_keep_both(tmp_path: Path) -> None:
    one, two = make_serials(tmp_path / "one", 4, "ab"), make_serials(tmp_path / "two", 4, "ab")
    report = build([str(one), str(two)], str(tmp_path / "o"), Recipe(), ONE)
    assert report.written == 8
    assert sorted(labels_of(tmp_path / "o"))[::4] == ["a/00000.png", "two/a/00000.png"]


def test_one_name_in_common_changes_one_name(tmp_path: Path) -> None:
    one, two = make_serials(tmp_path / "one", 40, "ab"), make_serials(tmp_path / "two", 20, "ab", start=39)
    build(str(one), str(tmp_path / "old"), Recipe(val=0.3), ONE)
    new = tmp_path / "new"
    report = build([str(one), str(two)], str(new), Recipe(val=0.3), Job(workers=1, reuse=str(tmp_path / "old")))
    assert report.reused == 40
    for split in ("train", "val"):
        names = set(labels_of(new / split))
        assert names >= set(labels_of(tmp_path / "old" / split))
    names = set(labels_of(new / "train")) | set(labels_of(new / "val"))
    assert {name for name in names if name.startswith("two/")} == {"two/b/00039.png"}


def test_sources_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    paths = [make_serials(tmp_path / cam / "images", 4, "ab") for cam in ("left", "right")]
    build([str(path) for path in paths], str(tmp_path / "o"), Recipe(), ONE)
    assert max(labels_of(tmp_path / "o")) == "right/images/b/00003.png"


def test_a_source_named_by_a_dot_has_its_folders_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_serials(tmp_path / "one", 4, "ab")
    monkeypatch.chdir(make_serials(tmp_path / "two", 4, "ab"))
    build(["../one", "."], str(tmp_path / "o"), Recipe(), ONE)
    assert max(labels_of(tmp_path / "o")) == "two/b/00003.png"


def test_sources_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    one = make_serials(tmp_path / "one", 4, "ab")
    split = tmp_path / "two"
    make_serials(split / "train", 4, "ab")
    with pytest.raises(SourceError, match="has no folders for splits, unlike the other sources"):
        build([str(one), str(split)], str(tmp_path / "o"), Recipe(), ONE)
    for other in (one, one / "a", tmp_path):
        with pytest.raises(UsageError, match="overlap: name each image once"):
            build([str(one), str(other)], str(tmp_path / "o"), Recipe(), ONE)


@pytest.mark.parametrize("form", ["store", "file"])
def test_old_classes_keep_their_index(form: str, tmp_path: Path) -> None:
    build(str(make_serials(tmp_path / "one", 6, "bdf")), str(tmp_path / "old"), Recipe(), ONE)
    known = tmp_path / "old"
    if form == "file":
        known = tmp_path / "classes.txt"
        known.write_text("b\nd\nf\n")
    make_serials(tmp_path / "one", 4, "ad", start=6)
    build(str(tmp_path / "one"), str(tmp_path / "new"), Recipe(), Job(workers=1, classes=str(known)))
    assert packer_reader.open(tmp_path / "new").classes == ("b", "d", "f", "a")
    assert {name[0]: label for name, label in labels_of(tmp_path / "new").items()} == {"b": 0, "d": 1, "f": 2, "a": 3}


def test_a_class_without_images_keeps_its_index(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("gone\na\n")
    source = make_serials(tmp_path / "s", 4, "ab")
    build(str(source), str(tmp_path / "o"), Recipe(), Job(workers=1, classes=str(tmp_path / "classes.txt")))
    store = packer_reader.open(tmp_path / "o")
    assert store.classes == ("gone", "a", "b")
    assert store.manifest.statistics["class_counts"] == [0, 2, 2]


@pytest.mark.parametrize(
    ("content", "message"), [("", "has no classes"), ("a\na\n", "names 'a' twice"), (None, "cannot be read")]
)
def test_odd_class_lists_are_refused(content: str | None, message: str, serials: Path, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "c.txt").write_text(content)
    with pytest.raises(UsageError, match=message):
        build(str(serials), str(tmp_path / "o"), Recipe(), Job(classes=str(tmp_path / "c.txt")))


def changed(source: Path) -> int:
    """Change a photo, touch one, remove one, add two; the number that has to be converted."""
    files = sorted(source.rglob("*.jpg"))
    shutil.copy(files[0], files[3])
    os.utime(files[3], ns=(7, 7))
    os.utime(files[5], ns=(5, 5))
    files[8].unlink()
    for number in (0, 1):
        shutil.copy(files[number], source / "dog" / f"zz{number}.jpg")
    return 3


@pytest.mark.parametrize("kinds", [("tar", "tar"), ("lmdb", "lmdb"), ("tar", "lmdb"), ("lmdb", "tar")])
def test_reuse_gives_the_bytes_of_a_full_build(kinds: tuple[Any, Any], tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 60)
    recipe: dict[str, Any] = {"resize": (32,), "fit": "crop", "meta": True, "unit": 16}
    build(str(source), str(tmp_path / "old"), Recipe(container=kinds[0], seed=3, **recipe), ONE)
    converted = changed(source)
    for name, job in (("full", ONE), ("quick", Job(workers=2, reuse=str(tmp_path / "old")))):
        report = build(str(source), str(tmp_path / name), Recipe(container=kinds[1], **recipe), job)
    assert tree(tmp_path / "full") == tree(tmp_path / "quick")
    assert report.reused == 61 - converted


def test_reuse_decodes_nothing_that_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_photos(tmp_path / "src", 30)
    build(str(source), str(tmp_path / "old"), Recipe(resize=(32,)), ONE)
    read = list[str]()

    def noted(root: str, ref: Ref) -> bytes:
        read.append(ref.name)
        return read_ref(root, ref)

    monkeypatch.setattr("packer.sources.imagefolder.read_ref", noted)
    (source / "cat" / "new.jpg").write_bytes((source / "cat" / "0000.jpg").read_bytes())
    build(str(source), str(tmp_path / "new"), Recipe(resize=(32,)), Job(workers=1, reuse=str(tmp_path / "old")))
    assert read == ["cat/new.jpg"]


def test_reuse_crosses_splits_and_tries_failures_again(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 40)
    good = (source / "cat" / "0000.jpg").read_bytes()
    (source / "cat" / "0000.jpg").write_bytes(b"broken")
    old = build(str(source), str(tmp_path / "old"), Recipe(val=0.3, resize=(32,)), ONE)
    assert old.skipped == 1
    (source / "cat" / "0000.jpg").write_bytes(good)
    report = build(
        str(source), str(tmp_path / "new"), Recipe(val=0.5, resize=(32,)), Job(workers=1, reuse=str(tmp_path / "old"))
    )
    assert (report.skipped, report.reused) == (0, 39)
    build(str(source), str(tmp_path / "full"), Recipe(val=0.5, resize=(32,)), ONE)
    assert tree(tmp_path / "full") == tree(tmp_path / "new")


def test_a_damaged_store_is_not_copied_from(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 20)
    build(str(source), str(tmp_path / "old"), Recipe(resize=(32,)), ONE)
    for place in range(2000, 12000, 1000):
        flip_byte(tmp_path / "old" / "train-000000.tar", place)
    build(str(source), str(tmp_path / "new"), Recipe(resize=(32,)), Job(workers=1, reuse=str(tmp_path / "old")))
    build(str(source), str(tmp_path / "full"), Recipe(resize=(32,)), ONE)
    assert tree(tmp_path / "full") == tree(tmp_path / "new")


def test_a_store_may_be_replaced_by_its_own_new_version(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 20)
    build(str(source), str(tmp_path / "o"), Recipe(resize=(32,)), ONE)
    changed(source)
    job = Job(workers=1, reuse=str(tmp_path / "o"), overwrite=True)
    assert build(str(source), str(tmp_path / "o"), Recipe(resize=(32,)), job).written == 21


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"resize": (48,)}, r"resize was \[32\], is \[48\]"),
        ({"resize": (32,), "quality": 80}, "quality was 90, is 80"),
        ({"resize": (32,), "encode": "png"}, "encode was 'keep', is 'png'; codec was 'jpg', is 'png'"),
        ({"resize": (32,), "exact": True}, "exact was False, is True"),
    ],
)
def test_a_store_of_another_recipe_is_not_reused(options: dict[str, Any], difference: str, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 6)
    build(str(source), str(tmp_path / "old"), Recipe(resize=(32,)), ONE)
    with pytest.raises(UsageError, match=f"was made otherwise: {difference}"):
        build(str(source), str(tmp_path / "new"), Recipe(**options), Job(workers=1, reuse=str(tmp_path / "old")))


def test_no_store_to_reuse_is_said(serials: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="--reuse: .* is no complete store"):
        build(str(serials), str(tmp_path / "o"), Recipe(), Job(workers=1, reuse=str(serials)))


@pytest.mark.parametrize("mode", ["hash", "none"])
def test_names_can_be_withheld(mode: Any, tmp_path: Path) -> None:
    source = make_serials(tmp_path / "s", 6, "ab")
    (source / "a" / "bad_person.png").write_bytes(b"x")
    (source / "loose_person.png").write_bytes(b"x")
    build(str(source), str(tmp_path / "o"), Recipe(source_names=mode, meta=True), ONE)
    everything = b"".join(path.read_bytes() for path in (tmp_path / "o").rglob("*") if path.is_file())
    assert b"person" not in everything
    assert b"b/00001" not in everything
    store = packer_reader.open(tmp_path / "o")
    lines = [json.loads(line)["name"] for line in (tmp_path / "o" / "errors.jsonl").read_text().splitlines()]
    hidden = hashlib.sha256(b"a/bad_person.png").hexdigest()[:32]
    assert (hidden if mode == "hash" else "") in lines
    if mode == "hash":
        assert store.find(hashlib.sha256(b"b/00001.png").hexdigest()[:32]) >= 0


def test_hashed_names_can_be_reused_and_withheld_ones_cannot(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 10)
    for mode in ("hash", "none"):
        build(str(source), str(tmp_path / mode), Recipe(source_names=mode), ONE)
    report = build(str(source), str(tmp_path / "o"), Recipe(), Job(workers=1, reuse=str(tmp_path / "hash")))
    assert report.reused == 10
    with pytest.raises(UsageError, match="built with --source-names none"):
        build(str(source), str(tmp_path / "p"), Recipe(), Job(workers=1, reuse=str(tmp_path / "none")))


def test_a_damaged_column_is_not_copied_from(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 10)
    build(str(source), str(tmp_path / "old"), Recipe(), ONE)
    flip_byte(tmp_path / "old" / "columns" / "height.col", -3)
    with pytest.raises(DamageError, match="column 'height' is damaged: run `packer verify"):
        build(str(source), str(tmp_path / "o"), Recipe(), Job(workers=1, reuse=str(tmp_path / "old")))


def test_the_list_of_classes_in_a_store_stands_for_the_store(tmp_path: Path) -> None:
    source = tmp_path / "s"
    for name in ("a\\b", "new\nline", "é"):
        make_serials(source / name, 2, "")
    build(str(source), str(tmp_path / "o"), Recipe(), ONE)
    classes = packer_reader.open(tmp_path / "o").classes
    build(str(source), str(tmp_path / "p"), Recipe(), Job(workers=1, classes=str(tmp_path / "o" / "classes.txt")))
    assert packer_reader.open(tmp_path / "p").classes == classes


def test_unfinished_parts_may_not_lie_in_the_source(serials: Path, tmp_path: Path) -> None:
    for tmp, message in ((serials / "a", "lies inside the source"), (tmp_path / "gone", "is no folder")):
        with pytest.raises(OutputError, match=message):
            build(str(serials), str(tmp_path / "o"), Recipe(), Job(workers=1, tmp=str(tmp)))
