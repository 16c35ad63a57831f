"""Builds: whole, counted, and the same bytes whoever made them and however often they were interrupted."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import numpy as np
import pytest
from PIL import Image

import packer_reader
from packer import Job, Recipe, Report, build
from packer_reader.errors import OutputError, PackerError, SampleError, SourceError, UsageError
from packer_reader.format.tar import END, member_size
from tests.conftest import make_photos, make_serials, serial_image, serial_of
from tests.faults import tree

ONE = Job(workers=1)


def serials_in(store: Path) -> list[int]:
    opened = packer_reader.open(store)
    return [serial_of(opened[number]["image"]) for number in range(len(opened))]


@pytest.mark.parametrize("container", ["tar", "lmdb"])
def test_every_sample_is_there_with_its_label(container: Any, serials: Path, tmp_path: Path) -> None:
    report = build(str(serials), str(tmp_path / "o"), Recipe(container=container), ONE)
    store = packer_reader.open(tmp_path / "o")
    assert (report.found, report.written, report.skipped) == (60, 60, 0)
    for number in range(60):
        serial = serial_of(store[number]["image"])
        assert store[number]["label"] == serial % 3
        assert store.source(number) == f"{'abc'[serial % 3]}/{serial:05d}.png"
    assert sorted(serials_in(tmp_path / "o")) == list(range(60))
    assert serials_in(tmp_path / "o") != list(range(60))


def test_both_containers_have_one_content_digest(tar_store: Path, lmdb_store: Path) -> None:
    digests = {packer_reader.open(path).manifest.content_digest for path in (tar_store, lmdb_store)}
    assert len(digests) == 1


def test_shards_are_full_to_within_one_sample(tar_store: Path) -> None:
    paths = sorted(tar_store.glob("*.tar"))
    sizes = [path.stat().st_size for path in paths]
    assert len(sizes) > 3
    assert all(size <= 30_000 for size in sizes)
    store = packer_reader.open(tar_store)
    for shard, size in enumerate(sizes[:-1]):
        following = store.index(shard + 1).size[:, 0].tolist()
        assert size + sum(member_size(n) for n in following) > 30_000
    assert all(path.read_bytes().endswith(END) for path in paths)


def test_plain_lmdb_and_msgpack_read_the_store(lmdb_store: Path, tar_store: Path, tmp_path: Path) -> None:
    found: dict[str, bytes] = {}
    # A copy: lmdb opens a file once in a process, and other tests have this one open.
    copy = shutil.copytree(lmdb_store, tmp_path / "copy")
    with lmdb.open(str(copy), readonly=True, lock=False) as env, env.begin() as txn:
        for key, value in txn.cursor():
            document = msgpack.unpackb(value)
            samples = document if isinstance(document, list) else [[int.from_bytes(key, "big"), document]]
            found |= {f"{k:016d}.{suffix}": blob for k, fields in samples for suffix, blob in fields.items()}
    expected: dict[str, bytes] = {}
    for path in tar_store.glob("*.tar"):
        with tarfile.open(path) as archive:
            expected |= {m.name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]
    assert found == expected


@pytest.mark.parametrize("container", ["tar", "lmdb"])
@pytest.mark.parametrize("make", [make_serials, make_photos])
def test_any_number_of_workers_gives_the_same_bytes(container: Any, make: Any, tmp_path: Path) -> None:
    make(tmp_path / "src", 50)
    recipe = Recipe(container=container, resize=(32,), fit="crop", shard_bytes=40_000, unit=7, meta=True)
    for workers in (1, 2):
        build(str(tmp_path / "src"), str(tmp_path / f"o{workers}"), recipe, Job(workers=workers))
    assert tree(tmp_path / "o1") == tree(tmp_path / "o2")


def test_the_seed_decides_the_order(serials: Path, tmp_path: Path) -> None:
    orders = []
    for seed in (0, 0, 1):
        build(str(serials), str(tmp_path / "o"), Recipe(seed=seed), Job(workers=1, overwrite=True))
        orders.append(serials_in(tmp_path / "o"))
    assert orders[0] == orders[1] != orders[2]


def test_without_shuffling_the_source_order_stays(serials: Path, tmp_path: Path) -> None:
    build(str(serials), str(tmp_path / "o"), Recipe(shuffle=False), ONE)
    store = packer_reader.open(tmp_path / "o")
    assert [store.source(n) for n in range(60)] == sorted(store.source(n) for n in range(60))
    assert not store.manifest.shuffled


@pytest.mark.parametrize("container", ["tar", "lmdb"])
def test_bad_samples_leave_holes_and_lines(container: Any, tmp_path: Path) -> None:
    source = make_serials(tmp_path / "src", 30)
    good = (source / "a" / "00003.png").read_bytes()
    (source / "a" / "00003.png").write_bytes(good[: len(good) // 2])
    (source / "b" / "zero.jpg").touch()
    (source / "loose.png").write_bytes(good)
    report = build(str(source), str(tmp_path / "o"), Recipe(container=container), ONE)
    lines = [json.loads(line) for line in (tmp_path / "o" / "errors.jsonl").read_text().splitlines()]
    assert (report.found, report.written, report.skipped) == (32, 29, 3)
    assert lines[0] == {"name": "loose.png", "class": "no-class", "reason": "the file is in no class folder"}
    assert {line["name"]: line["class"] for line in lines[1:]} == {"a/00003.png": "truncated", "b/zero.jpg": "empty"}
    keys = {int(k) for k in packer_reader.open(tmp_path / "o").index(0).key}
    assert keys | {line["key"] for line in lines[1:]} == set(range(31))
    assert sorted(serials_in(tmp_path / "o")) == [n for n in range(30) if n != 3]


def test_the_digest_is_the_same_with_holes(tmp_path: Path) -> None:
    source = make_serials(tmp_path / "src", 20)
    (source / "a" / "00003.png").write_bytes(b"no picture")
    digests = set()
    for container in ("tar", "lmdb"):
        recipe = Recipe(container=container)
        digests.add(build(str(source), str(tmp_path / container), recipe, ONE).manifests[0].content_digest)
    assert len(digests) == 1


def test_strict_builds_stop_at_the_first_bad_sample(tmp_path: Path) -> None:
    source = make_serials(tmp_path / "src", 5)
    (source / "a" / "00003.png").write_bytes(b"no picture")
    with pytest.raises(SampleError, match=r"'a/00003.png': .*repair or remove it"):
        build(str(source), str(tmp_path / "o"), Recipe(), Job(workers=1, stop_on_error=True))
    assert not (tmp_path / "o").exists()


def test_no_sample_means_no_store(tmp_path: Path) -> None:
    (tmp_path / "src" / "a").mkdir(parents=True)
    (tmp_path / "src" / "a" / "1.png").write_bytes(b"no picture")
    with pytest.raises(SourceError, match=r"none of the 1 samples .*'a/1.png'.*no store was written"):
        build(str(tmp_path / "src"), str(tmp_path / "o"), Recipe(), ONE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["src"]


def test_splits_become_stores_of_their_own(serials: Path, tmp_path: Path) -> None:
    report = build(str(serials), str(tmp_path / "o"), Recipe(val=0.3, stratify=True), ONE)
    assert report.splits == {"train": 42, "val": 18}
    train, val = (set(serials_in(tmp_path / "o" / split)) for split in ("train", "val"))
    assert train | val == set(range(60))
    assert not train & val
    assert packer_reader.open(tmp_path / "o", "val").manifest.classes == ("a", "b", "c")


def test_split_folders_are_followed(tmp_path: Path) -> None:
    make_serials(tmp_path / "src" / "train", 9)
    make_serials(tmp_path / "src" / "test", 4, "b", start=100)
    build(str(tmp_path / "src"), str(tmp_path / "o.lmdb"), Recipe(container="lmdb"), ONE)
    test = packer_reader.open(tmp_path / "o.lmdb", "test")
    assert sorted(serials_in(tmp_path / "o.lmdb" / "test")) == [100, 101, 102, 103]
    assert test.classes == ("a", "b", "c")
    assert {test[n]["label"] for n in range(4)} == {1}


@pytest.mark.parametrize(
    ("options", "message"),
    [({"val": 0.001}, "split 'val' would have none of the 9 samples: give a larger --val"),
     ({"val": 0.5, "group_by": "nope"}, "does not match 'a/00000.png'")],
)  # fmt: skip
def test_splits_that_cannot_be_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    make_serials(tmp_path / "src", 9)
    with pytest.raises(UsageError, match=message):
        build(str(tmp_path / "src"), str(tmp_path / "o"), Recipe(**options), ONE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["src"]


def test_val_is_refused_where_folders_say_it(tmp_path: Path) -> None:
    make_serials(tmp_path / "src" / "train", 9)
    with pytest.raises(UsageError, match="--val is given, but the source has splits already"):
        build(str(tmp_path / "src"), str(tmp_path / "o"), Recipe(val=0.1), ONE)


@pytest.mark.parametrize(("encode", "suffix"), [("jpg", "jpg"), ("png", "png"), ("webp", "webp"), ("raw", "npy")])
@pytest.mark.parametrize("gray", [False, True])
def test_every_codec_can_be_stored_and_read(encode: Any, suffix: str, gray: bool, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 4)
    recipe = Recipe(encode=encode, gray=gray, resize=(40,), fit="crop", quality=95)
    build(str(source), str(tmp_path / "o"), recipe, ONE)
    store = packer_reader.open(tmp_path / "o")
    assert store.manifest.suffixes == (suffix, "cls")
    for number in range(4):
        image = Image.open(source / store.source(number)).convert("L" if gray else "RGB")
        side = min(image.size)
        box = ((image.width - side) / 2, (image.height - side) / 2, (image.width + side) / 2, (image.height + side) / 2)
        expected = np.asarray(image.resize((40, 40), Image.Resampling.BILINEAR, box=box)).reshape(40, 40, -1)
        assert np.abs(store[number]["image"].astype(int) - expected).mean() < 8


def test_mixed_formats_get_one_suffix_and_are_counted(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 6)
    serial_image(5).save(source / "cat" / "x.png")
    report = build(str(source), str(tmp_path / "o"), Recipe(), ONE)
    assert report.reencoded == {"png>jpg": 1}
    assert packer_reader.open(tmp_path / "o").manifest.reencoded == {"png>jpg": 1}


def test_unchanged_files_keep_their_bytes(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 6)
    build(str(source), str(tmp_path / "o"), Recipe(), ONE)
    store = packer_reader.open(tmp_path / "o")
    for number in range(6):
        assert store.encoded(number)["jpg"] == (source / store.source(number)).read_bytes()


def test_statistics_are_those_of_the_stored_pixels(tmp_path: Path) -> None:
    build(str(make_photos(tmp_path / "src", 8)), str(tmp_path / "o"), Recipe(encode="raw"), ONE)
    store = packer_reader.open(tmp_path / "o")
    pixels = np.concatenate([store[n]["image"].reshape(-1, 3) for n in range(8)]) / 255
    image = store.manifest.statistics["image"]
    assert np.allclose(image["mean"], pixels.mean(0), atol=1e-6)
    assert np.allclose(image["std"], pixels.std(0), atol=1e-6)
    assert store.manifest.statistics["class_counts"] == [4, 4]
    heights = store.columns.numbers("height")
    assert image["height"]["0"] == heights.min()
    assert image["height"]["100"] == heights.max()


def test_lists_for_other_tools(tar_store: Path) -> None:
    info = json.loads((tar_store / "_info.json").read_text())["splits"]["train"]
    assert info["num_samples"] == sum(info["shard_lengths"]) == 60
    assert all((tar_store / name).is_file() for name in info["filenames"])
    assert (tar_store / "classes.txt").read_text() == "a\nb\nc\n"


def test_meta_describes_each_sample(serials: Path, tmp_path: Path) -> None:
    build(str(serials), str(tmp_path / "o"), Recipe(meta=True), ONE)
    store = packer_reader.open(tmp_path / "o")
    assert store[7]["meta"] == {"name": store.source(7), "class": "abc"[store[7]["label"]], "height": 16, "width": 16}


def test_no_trace_of_the_machine_is_stored(tar_store: Path, serials: Path) -> None:
    for name, data in tree(tar_store).items():
        assert os.fsencode(str(serials)) not in data, name
        assert b"/tmp" not in data or name.endswith(".tar"), name


def test_a_sample_over_the_shard_size_gets_its_own(tmp_path: Path) -> None:
    source = make_serials(tmp_path / "src", 6)
    noise = np.random.default_rng(0).integers(0, 256, (90, 90, 3), np.uint8)
    Image.fromarray(noise).save(source / "a" / "big.png")
    report = build(str(source), str(tmp_path / "o"), Recipe(shard_bytes=12_000), ONE)
    sizes = sorted(path.stat().st_size for path in (tmp_path / "o").glob("*.tar"))
    assert (report.written, sum(size > 12_000 for size in sizes)) == (7, 1)


@pytest.mark.parametrize("where", ["src/out", "src", "."])
def test_output_and_source_may_not_overlap(where: str, tmp_path: Path) -> None:
    make_serials(tmp_path / "src", 3)
    with pytest.raises(OutputError, match=r"(lies inside|holds) the source"):
        build(str(tmp_path / "src"), str(tmp_path / where), Recipe(), ONE)


def test_an_existing_store_is_kept_unless_told_otherwise(tmp_path: Path) -> None:
    source, out = make_serials(tmp_path / "src", 6), tmp_path / "o"
    build(str(source), str(out), Recipe(), ONE)
    before = tree(out)
    with pytest.raises(OutputError, match="exists already: choose another name, or give --overwrite"):
        build(str(source), str(out), Recipe(seed=1), ONE)
    assert tree(out) == before
    build(str(source), str(out), Recipe(seed=1), Job(workers=1, overwrite=True))
    assert tree(out) != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o", "src"]


@pytest.mark.parametrize("stranger", ["precious.txt", "columns/mine.col", "train-000009.tar"])
def test_a_strangers_file_is_never_replaced(stranger: str, tmp_path: Path) -> None:
    source, out = make_serials(tmp_path / "src", 6), tmp_path / "o"
    build(str(source), str(out), Recipe(), ONE)
    (out / stranger).write_text("do not delete")
    with pytest.raises(OutputError, match=f"no store of ours wrote .*{stranger}"):
        build(str(source), str(out), Recipe(), Job(workers=1, overwrite=True))
    assert (out / stranger).read_text() == "do not delete"


def test_a_folder_of_splits_can_be_replaced(serials: Path, tmp_path: Path) -> None:
    for recipe in (Recipe(val=0.3), Recipe(val=0.2), Recipe()):
        build(str(serials), str(tmp_path / "o"), recipe, Job(workers=1, overwrite=True))
    assert sorted(serials_in(tmp_path / "o")) == list(range(60))


def test_a_target_below_a_file_is_refused_at_once(serials: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be made: .*file' is a file"):
        build(str(serials), str(tmp_path / "file" / "o"), Recipe(), ONE)


def test_any_file_name_is_stored_exactly(tmp_path: Path) -> None:
    names = [b"new\nline.png", b"raw_\xff\xfe.png", "日本語.png".encode(), b"x.v1.2.png", b"q" * 251 + b".png"]
    (tmp_path / "src" / "a").mkdir(parents=True)
    data = io.BytesIO()
    serial_image(3).save(data, "PNG")
    for name in names:
        Path(os.fsdecode(os.fsencode(tmp_path / "src" / "a") + b"/" + name)).write_bytes(data.getvalue())
    build(str(tmp_path / "src"), str(tmp_path / "o"), Recipe(), ONE)
    store = packer_reader.open(tmp_path / "o")
    assert {os.fsencode(store.source(n)) for n in range(len(store))} == {b"a/" + name for name in names}
    assert store.find(os.fsdecode(b"a/raw_\xff\xfe.png")) >= 0


def test_reports_are_json(serials: Path, tmp_path: Path) -> None:
    report: Report = build(str(serials), str(tmp_path / "o"), Recipe(), ONE)
    document = json.loads(json.dumps(report.to_json()))
    assert document["found"] == document["written"] + document["skipped"] == 60


def test_every_failure_is_ours(tmp_path: Path) -> None:
    with pytest.raises(PackerError):
        build(str(tmp_path / "gone"), str(tmp_path / "o"), Recipe(), ONE)
