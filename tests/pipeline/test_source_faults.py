"""What users' odd sources once did to these readers: lost rows, other labels, stores that nobody could open."""

from __future__ import annotations

import io
import json
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from PIL import Image

import packer_reader
from packer import Job, Recipe, build
from packer.cli.main import cli
from packer.sources.detect import detect
from packer.sources.lists import read_rows
from packer.transforms.masks import decode_mask
from packer_reader.errors import SampleError, SourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ONE = Job(workers=1)


def png(value: int = 1, mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    Image.new(mode, (8, 6), (value, 2, 3) if mode == "RGB" else value).save(stream, "PNG")
    return stream.getvalue()


def files(root: Path, content: Mapping[str, bytes | str]) -> Path:
    for name, data in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return root


def converted(source: Path, out: Path, **options: Any) -> packer_reader.Store:
    build(str(source), str(out), Recipe(**options), ONE)
    return packer_reader.open(out)


def test_labels_in_files_of_their_own_are_not_copied_blindly(tmp_path: Path) -> None:
    root = files(tmp_path / "s", {"0.png": png(), "0.cls": "4", "1.png": png(2), "1.cls": "5"})
    assert sorted(sample["label"] for sample in converted(root, tmp_path / "a")) == [4, 5]
    with pytest.raises(UsageError, match="--reuse copies images and labels, this source has other fields"):
        build(str(root), str(tmp_path / "b"), Recipe(), Job(workers=1, reuse=str(tmp_path / "a")))


def test_exact_names_pair_before_endings_do(tmp_path: Path) -> None:
    content: dict[str, bytes | str] = {}
    for number, name in enumerate(("face", "face_mask", "v_0000", "v_0001", "face_1_0000")):
        content[f"images/{name}.png"] = png(number)
        content[f"masks/{name if name != 'face_1_0000' else 'face_1'}.png"] = png(number, "L")
    store = converted(files(tmp_path / "s", content), tmp_path / "o")
    assert len(store) == 5
    assert all(sample["image"][0, 0, 0] == sample["mask"][0, 0] for sample in store)


def gray_png(depth: int, values: list[int]) -> bytes:
    """A PNG of one row in so many bits a pixel, written by hand: Pillow writes none."""
    bits = "".join(f"{value:0{depth}b}" for value in values)
    row = bytes(int(bits[place : place + 8].ljust(8, "0"), 2) for place in range(0, len(bits), 8))
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", len(values), 1, depth, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0" + row)),
    ]
    data = b"\x89PNG\r\n\x1a\n"
    for kind, body in [*parts, (b"IEND", b"")]:
        data += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return data


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_masks_of_few_bits_keep_their_values(depth: int) -> None:
    values = [0, 1, min(3, 2**depth - 1), 1, 0]
    assert decode_mask(gray_png(depth, values), "mask", 100).tolist() == [values]


@pytest.mark.parametrize(("top", "fine"), [(255, True), (65535, True), (15, False), (1023, False)])
def test_masks_whose_values_pillow_stretches_are_refused(top: int, fine: bool) -> None:
    data = f"P5\n# a comment\n3 1\n{top}\n".encode() + bytes([0, 1, 2] if top < 256 else [0, 0, 0, 1, 0, 2])
    if fine:
        assert decode_mask(data, "mask", 100).tolist() == [[0, 1, 2]]
    else:
        with pytest.raises(SampleError, match=f"PGM of maximum {top}"):
            decode_mask(data, "mask", 100)


def test_a_label_never_becomes_the_ignore_label(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.fromarray(np.array([[0, 256]], np.uint16)).save(stream, "PNG")
    image = io.BytesIO()
    Image.new("RGB", (2, 1)).save(image, "PNG")
    root = files(tmp_path / "s", {"images/a.png": image.getvalue(), "masks/a.png": stream.getvalue()})
    with pytest.raises(SourceError, match="label 256 would become the ignore label"):
        converted(root, tmp_path / "o", reduce_zero_label=True)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'path,words\na.png,"never closed\nb.png,x\nc.png,y\n', "is not CSV"),
        (b'path,words\na.png,"x"y\n', "line 2 is not CSV"),
        ("path,words\na.png,x\n".encode("utf-16") + b"\x00", "is not the UTF-16 that it begins as"),
        (b"\xff\xfe\x00\xd8\x00\xd8", "is not the UTF-16 that it begins as"),
    ],
)
def test_rows_are_never_swallowed(data: bytes, message: str, tmp_path: Path) -> None:
    files(tmp_path, {"l.csv": data})
    with pytest.raises(SourceError, match=message):
        list(read_rows(tmp_path / "l.csv")[2])


def test_headers_may_be_quoted_and_empty(tmp_path: Path) -> None:
    files(tmp_path, {"l.csv": ',"file\nname",file_name,label\n0,x,a.png,3\n', "a.png": png()})
    assert read_rows(tmp_path / "l.csv")[0] == ["column_0", "file\nname", "file_name", "label"]
    assert converted(tmp_path / "l.csv", tmp_path / "o")[0]["label"] == 3


def test_several_sources_do_not_lose_masks_or_labels(tmp_path: Path) -> None:
    for name in "ab":
        files(tmp_path / name, {"images/1.png": png(), "masks/1.png": png(1, "L")})
        files(tmp_path, {f"{name}.csv": "path\nx.png\n"})
    for pair in (["a", "b"], ["a.csv", "b.csv"]):
        with pytest.raises(SourceError, match="which is built on its own"):
            detect([str(tmp_path / name) for name in pair])
    assert detect([str(tmp_path / "a"), str(tmp_path / "b")], "imagefolder").type == "imagefolder"


def test_every_file_of_a_group_is_accounted_for(tmp_path: Path) -> None:
    root = files(tmp_path / "s", {"0.png": png(), "0.txt": "x", "1.txt": "no image", "2.jpg": png(), "2.JPG": png()})
    report = build(str(root), str(tmp_path / "o"), Recipe(), Job(workers=1, source_type="sidecars"))
    assert (report.found, report.written, report.errors) == (4, 2, {"no-image": 1, "duplicate": 1})


def test_dots_in_names_and_a_stray_text_do_not_change_what_a_folder_is(tmp_path: Path) -> None:
    root = files(tmp_path / "s", {"2023.01.05.png": png(), "2023.01.06.png": png(), "cat.png": png(), "cat.txt": "x"})
    assert detect([str(root)]).type == "imagefolder"
    assert len(converted(root, tmp_path / "o")) == 3


def test_other_folders_beside_images_and_masks_are_classes(tmp_path: Path) -> None:
    root = files(tmp_path / "s", {f"{name}/1.png": png() for name in ("image", "mask", "cat", "dog")})
    assert converted(root, tmp_path / "o").classes == ("cat", "dog", "image", "mask")


@pytest.mark.parametrize("name", ["label.png", "légende.txt", f"{'x' * 60}.txt", "image.txt"])
def test_fields_that_no_store_can_have_are_left_out(name: str, tmp_path: Path) -> None:
    content = {"a.png": png(), f"a.{name}": png(1, "L") if name.endswith("png") else "x", "a.cls": "1", "a.txt": "x"}
    store = converted(files(tmp_path / "s", content), tmp_path / "o")
    assert [field.name for field in store.manifest.fields] == ["image", "label", "txt"]


@pytest.mark.parametrize(
    "column", ["source_size", "shards", "mask_bits", "png_file_name", "source_hash", "id", "bytes", "meta"]
)
def test_columns_of_a_list_cannot_take_a_stores_own_place(column: str, tmp_path: Path) -> None:
    files(tmp_path, {"a.png": png(), "m.png": png(1, "L"), "p.png": png(1, "L")})
    row = {"path": "a.png", "mask_file_name": "m.png", column: "p.png" if column.endswith("file_name") else 3}
    files(tmp_path, {"l.jsonl": json.dumps(row) + "\n"})
    with pytest.raises(UsageError, match="cannot be"):
        converted(tmp_path / "l.jsonl", tmp_path / "o", encode="png")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("l.csv", b"path,words\na.png,caf\xe9\nb.png,x\n"),
        ("l.jsonl", b'{"path": "a.png", "words": "\\ud800"}\n{"path": "b.png", "words": "x"}\n'),
        ("l.jsonl", b'{"path": "a.png", "words": ["\\ud800"]}\n{"path": "b.png", "words": ["x"]}\n'),
        ("l.jsonl", b'{"path": "a.png", "words": [NaN]}\n{"path": "b.png", "words": [1]}\n'),
    ],
)
def test_text_that_cannot_be_kept_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    files(tmp_path, {"a.png": png(), "b.png": png(), name: content})
    report = build(str(tmp_path / name), str(tmp_path / "o"), Recipe(), ONE)
    assert (report.written, report.errors) == (1, {"unsupported": 1})


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2**63], "json"),
        ([2**53 + 1, 0.5], "json"),
        ([2**53, 0.5], "number"),
        ([1, True], "json"),
        ([10**400, 1], "json"),
    ],
)
def test_numbers_keep_every_digit(values: list[Any], kind: str, tmp_path: Path) -> None:
    files(tmp_path, {"a.png": png(), "b.png": png()})
    rows = [{"path": f"{name}.png", "n": value} for name, value in zip("ab", values, strict=True)]
    files(tmp_path, {"l.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    store = converted(tmp_path / "l.jsonl", tmp_path / "o", shuffle=False)
    assert [f.kind for f in store.manifest.fields if f.name == "n"] == [kind]
    assert [sample["n"] for sample in store] == values


def test_odd_parquet_is_one_sentence(tmp_path: Path) -> None:
    files(tmp_path, {"a.png": png()})
    pq.write_table(pa.table([["a.png"], ["x"]], names=["path", "path"]), tmp_path / "twice.parquet")
    with pytest.raises(SourceError, match="two columns of one name"):
        detect([str(tmp_path / "twice.parquet")]).scan(None)  # type: ignore[arg-type]
    pq.write_table(pa.table({"path": ["a.png"] * 2, "b": [b"x", b"y"]}), tmp_path / "bytes.parquet")
    store = converted(tmp_path / "bytes.parquet", tmp_path / "bytes")
    assert [field.name for field in store.manifest.fields] == ["image"]  # and that is said
    pq.write_table(
        pa.table({"path": [f"{n}.png" for n in range(9999)]}), tmp_path / "cut.parquet", use_dictionary=False
    )
    data = bytearray((tmp_path / "cut.parquet").read_bytes())
    data[40:4000] = bytes(3960)
    files(tmp_path, {"cut.parquet": bytes(data)})
    with pytest.raises(SourceError, match=r"is damaged behind row|is no Parquet file"):
        converted(tmp_path / "cut.parquet", tmp_path / "o")


def test_reasons_do_not_give_names_away(tmp_path: Path) -> None:
    files(tmp_path, {"l.csv": "path\npatient.png\n/etc/patient.png\nok.png\n", "ok.png": png()})
    converted(tmp_path / "l.csv", tmp_path / "o", source_names="hash")
    assert "patient" not in (tmp_path / "o" / "errors.jsonl").read_text()


def test_many_archives_are_told_apart_quickly_and_braces_must_close(tmp_path: Path) -> None:
    for number in range(300):
        files(tmp_path, {f"{number:03}.tar": b""})
    with pytest.raises(SourceError, match="no bytes"):
        build(str(tmp_path / "{000..299}.tar"), str(tmp_path / "o"), Recipe(), ONE)
    with pytest.raises(UsageError, match="opens a brace that it does not close"):
        detect([str(tmp_path / "{000..299.tar")])


def test_files_without_an_image_do_not_decide_what_all_samples_have(tmp_path: Path) -> None:
    root = files(
        tmp_path / "s", {"0.png": png(), "0.json": "1", "1.png": png(), "1.json": "2", "README.txt": "x", "z.cls": "1"}
    )
    report = build(str(root), str(tmp_path / "o"), Recipe(), Job(workers=1, source_type="sidecars"))
    assert (report.written, report.errors) == (2, {"no-image": 2})
    assert [field.name for field in packer_reader.open(tmp_path / "o").manifest.fields] == ["image", "json"]


def test_each_image_without_a_mask_of_its_own_is_named(tmp_path: Path) -> None:
    content = {"images/a.png": png(), "images/a.jpg": png(), "images/b.png": png()}
    root = files(tmp_path / "s", content | {"masks/a.png": png(1, "L"), "masks/b.png": png(1, "L")})
    report = build(str(root), str(tmp_path / "o"), Recipe(), ONE)
    assert (report.found, report.written) == (3, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"categories": [{"id": "x", "name": "a"}]},
        {"categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]},
        {"images": [{"id": 1, "file_name": "a.png"}, {"id": 1, "file_name": "a.png"}]},
        {"images": [{"id": [1], "file_name": "a.png"}]},
        {"images": [{"id": 1, "file_name": "a\ud800.png"}]},
    ],
)
def test_odd_annotations_are_one_sentence(change: dict[str, Any], tmp_path: Path) -> None:
    document = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "annotations": [{"image_id": [1], "category_id": 1, "bbox": [1, 1, 2, 2]}, {"bbox": [1, 1, 10**400, 2]}, 3],
        "categories": [{"id": 1, "name": "a"}],
    }
    files(tmp_path, {"a.png": png(), "good.json": json.dumps(document), "bad.json": json.dumps(document | change)})
    assert len(converted(tmp_path / "good.json", tmp_path / "o")) == 1
    with pytest.raises(SourceError):
        converted(tmp_path / "bad.json", tmp_path / "p")


def test_plan_takes_fields_too(tmp_path: Path) -> None:
    files(tmp_path, {"a.png": png(), "l.csv": "pic,words\na.png,x\n"})
    arguments = ["plan", str(tmp_path / "l.csv"), "--field", "image=image:pic"]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert "words (text) from 'words'" in done.output
