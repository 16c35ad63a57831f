"""Promises about lists of images: what a cell says is what is stored, and every row is accounted for."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

import packer_reader
from packer import Job, Recipe, build
from packer.sources.columns import choose
from packer.sources.lists import Column, read_rows
from packer_reader import StreamDataset
from packer_reader.errors import SourceError, UsageError
from tests.conftest import make_serials

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lists")
    make_serials(root / "img", 12)
    return root


def paths(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in (root / "img").rglob("*.png"))


def write_list(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path


def converted(listed: Path, out: Path, *fields: str, **options: Any) -> packer_reader.Store:
    build(str(listed), str(out), Recipe(**options), Job(workers=1, fields=fields))
    return packer_reader.open(out)


def by_name(store: packer_reader.Store) -> dict[str, dict[str, Any]]:
    return {store.source(number): store[number] for number in range(len(store))}


@pytest.mark.parametrize("container", ["tar", "lmdb"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_every_list_gives_the_same_fields(suffix: str, container: Any, images: Path, tmp_path: Path) -> None:
    rows: Rows = [
        {"path": path, "label": number % 3, "caption": f'no. {number}, "a"\n{"é" * number}', "score": number / 7}
        for number, path in enumerate(paths(images))
    ]
    listed = write_list(images / f"list{suffix}", rows)
    store = converted(listed, tmp_path / "o", container=container)
    fields = [(f.name, f.kind, f.suffix, f.dtype) for f in store.manifest.fields]
    assert fields[1:] == [
        ("label", "label", "cls", "int64"),
        ("caption", "text", "caption.txt", ""),
        ("score", "number", "score.json", "float64"),
    ]
    found = by_name(store)
    assert len(found) == len(rows)
    for row in rows:
        sample = found[row["path"]]
        assert {name: sample[name] for name in ("label", "caption", "score")} == {k: row[k] for k in row if k != "path"}
        assert (sample["image"] == np.asarray(Image.open(images / row["path"]))).all()
    ds = StreamDataset(tmp_path / "o", batch_size=5, with_id=True)
    for batch in DataLoader(ds, batch_size=None, num_workers=2):
        assert batch["score"].dtype == torch.float64
        for number, text, score in zip(batch["id"].tolist(), batch["caption"], batch["score"].tolist(), strict=True):
            assert (text, score) == (store[number]["caption"], store[number]["score"])


@pytest.mark.parametrize(
    ("cells", "kind", "kept"),
    [
        (["1", "-2", "30"], "label", [1, -2, 30]),
        (["0.5", "-1e3", "3"], "number", [0.5, -1000.0, 3.0]),
        (["1", "NA", "2"], "classes", ["1", "NA", "2"]),
        (["007", "7", "8"], "classes", ["007", "7", "8"]),
        (["true", "None", "x"], "classes", ["true", "None", "x"]),
        (["9223372036854775807", "1", "2"], "classes", None),
    ],
)
def test_a_column_of_text_has_one_type(
    cells: list[str], kind: str, kept: list[Any] | None, images: Path, tmp_path: Path
) -> None:
    rows = [{"path": path, "label": cell} for path, cell in zip(paths(images), cells, strict=False)]
    listed = write_list(images / "typed.csv", rows)
    if kept is None:
        store = converted(listed, tmp_path / "o")  # over 18 digits may not fit: text
        assert store.classes == ("1", "2", "9223372036854775807")
        return
    store = converted(listed, tmp_path / "o")
    found = [sample["label"] for _, sample in sorted(by_name(store).items())]
    if kind == "classes":
        assert store.classes == tuple(sorted(cells))
        found = [store.classes[label] for label in found]
    assert found == kept
    assert [f.kind for f in store.manifest.fields if f.name == "label"] == ["number" if kind == "number" else "label"]


def test_classes_keep_their_index(images: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("zebra\nant\n")
    rows = [{"path": path, "class": name} for path, name in zip(paths(images), ["cat", "ant", "bee"], strict=False)]
    listed = write_list(images / "known.csv", rows)
    build(str(listed), str(tmp_path / "o"), Recipe(), Job(workers=1, classes=str(tmp_path / "classes.txt")))
    store = packer_reader.open(tmp_path / "o")
    assert store.classes == ("zebra", "ant", "bee", "cat")
    assert [sample["label"] for _, sample in sorted(by_name(store).items())] == [3, 1, 2]


def test_rows_that_cannot_be_used_are_named(images: Path, tmp_path: Path) -> None:
    first = paths(images)[0]
    lines = [
        {"path": first, "label": 1, "score": 0.5},
        {"path": "img/none.png", "label": 1, "score": 1},
        {"path": "img", "label": 1, "score": 1},
        {"label": 1, "score": 1},
        {"path": first, "score": 1},
        {"path": first, "label": 1},
        {"path": "https://host/x.png", "label": 1, "score": 1},
        {"path": "img/a\0b.png", "label": 1, "score": 1},
        {"path": first, "label": 1 << 40, "score": 1},
    ]
    listed = images / "bad.jsonl"
    listed.write_text("".join(json.dumps(line) + "\n" for line in lines) + "{bad\n[1]\n\n")
    report = build(str(listed), str(tmp_path / "o"), Recipe(), Job(workers=1))
    assert (report.found, report.written, report.skipped) == (11, 1, 10)
    found = [json.loads(line) for line in (tmp_path / "o" / "errors.jsonl").read_text().splitlines()]
    assert [line["class"] for line in found] == [
        "vanished", "unreadable", "no-path", "no-label", "no-value", "unsupported", "unsupported", "unsupported",
        "bad-row", "bad-row",
    ]  # fmt: skip
    assert [line["name"] for line in found[-2:]] == ["line 10", "line 11"]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=9), min_size=3, max_size=3),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_csv_cells_come_back(cells: list[list[str]], separator: str, encoding: str, ending: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.csv"
        text = io.StringIO()
        writer = csv.writer(text, delimiter=separator, lineterminator=ending)
        writer.writerows([["a", "b", "c"], *cells])
        path.write_bytes(text.getvalue().encode(encoding))
        columns, are_text, rows = read_rows(path)
        assert (columns, are_text) == (["a", "b", "c"], True)
        found = [row.cells for row in rows]
    wanted = [{name: cell for name, cell in zip("abc", row, strict=True) if cell} for row in cells]
    assert [row for row in found if row] == [row for row in wanted if row]


@pytest.mark.parametrize("text", ["", "\n", "a,a\n1,2\n"])
def test_a_list_without_a_header_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(SourceError, match="the first line must name the columns"):
        read_rows(tmp_path / "x.csv")


def test_long_and_short_rows(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(f"a,b\n1\n1,2,3\n\n{'x' * 300_000},y\n")
    rows = list(read_rows(tmp_path / "x.csv")[2])
    assert [(row.place, row.problem) for row in rows] == [
        ("line 2", ""),
        ("line 3", "it has 3 cells, the header 2"),
        ("line 5", ""),
    ]
    assert len(rows[2].cells["a"]) == 300_000


COLUMNS = {"file": "str", "n": "int", "words": "str"}


def columns(**kinds: str) -> dict[str, Column]:
    cells = {"int": 1, "float": 0.5, "str": "x", "json": [1]}
    found = {}
    for name, kind in kinds.items():
        found[name] = Column(text=False)
        found[name].add(name, cells[kind])
    return found


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((), "no column of 'l' is known to name the image files .*--field image=image:file"),
        (("image=image:nope",), "has no column 'nope', it has file, n, words"),
        (("image",), "it must be NAME=KIND:COLUMN, KIND being one of image, label, mask"),
        (("image=picture:file",), "it must be NAME=KIND:COLUMN"),
        (("image=mask:file",), "the label is called label, and the .first. image image"),
        (("picture=image:file",), "no column of 'l' is known to name the image files"),
        (("image=image:file", "k=number:words"), "does not hold numbers alone"),
        (("image=image:file", "A-B=text:words"), "which cannot be: name it by --field"),
        (("image=image:file", "height=number:n"), "which cannot be: name it by --field"),
        (("image=image:file", "x=number:n", "x=text:words"), "would both be field 'x'"),
    ],
)
def test_fields_that_cannot_be_are_refused(asked: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose(columns(**COLUMNS), asked, (), "'l'")


def test_names_of_columns_decide_what_nobody_asks_for() -> None:
    found = choose(
        columns(path="str", category="int", mask_file_name="str", depth_file_name="str", info="json"), (), (), "l"
    )
    assert (found.image, found.label, found.classes) == ("path", "category", None)
    assert [(extra.name, extra.kind) for extra, _ in found.extras] == [
        ("mask", "mask"),
        ("depth", "depth"),
        ("info", "json"),
    ]
    asked = choose(columns(path="str", file_name="str", words="str"), ("label=label:file_name",), (), "l")
    assert (asked.image, asked.label) == ("path", "file_name")


def hugging_face(root: Path, suffix: str, *splits: str) -> None:
    """A data set as Hugging Face describes it, with masks."""
    for split in splits or ("",):
        folder = root / split
        (folder / "pics").mkdir(parents=True)
        rows = []
        for number in range(5):
            Image.new("RGB", (8, 6), (number * 9, 3, 77)).save(folder / "pics" / f"{number}.png")
            rows.append({"file_name": f"pics/{number}.png", "text": f"a {split} {number}", "weight": number * 0.5})
        Image.new("RGB", (4, 4)).save(folder / "pics" / "unlisted.png")
        write_list(folder / f"metadata{suffix}", rows)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("splits", [(), ("train", "test")])
@pytest.mark.usefixtures("careless_libraries")
def test_hugging_faces_folders_agree_with_its_own_reader(suffix: str, splits: tuple[str, ...], tmp_path: Path) -> None:
    hugging_face(tmp_path / "hf", suffix, *splits)
    said = list[str]()
    build(str(tmp_path / "hf"), str(tmp_path / "o"), Recipe(shuffle=False), Job(workers=1, watcher=Listener(said)))
    assert any("images are in no row of the list and were left out (the first: " in text for text in said)
    theirs = datasets.load_dataset(str(tmp_path / "hf"), cache_dir=str(tmp_path / "cache"))
    for split in splits or ("train",):
        ours = packer_reader.open(tmp_path / "o", split=split if splits else None)
        assert len(ours) == len(theirs[split]) == 5
        for mine, other in zip(ours, theirs[split], strict=True):
            assert (mine["image"] == np.asarray(other["image"])).all()
            assert (mine["text"], mine["weight"]) == (other["text"], other["weight"])


class Listener:
    """Keeps what is said."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def begin(self, what: str, total: int) -> None: ...

    def advance(self, samples: int, source_bytes: int, skipped: int) -> None: ...

    def say(self, text: str) -> None:
        self._said.append(text)


@pytest.mark.parametrize("files", [["x.parquet"], ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]])
@pytest.mark.parametrize("container", ["tar", "lmdb"])
def test_images_inside_parquet(files: list[str], container: Any, images: Path, tmp_path: Path) -> None:
    """As Hugging Face keeps them: structs of bytes and path."""
    (tmp_path / "data").mkdir()
    rows: Rows = [
        {"image": {"bytes": (images / path).read_bytes(), "path": path}, "label": number % 3, "words": f"no. {number}"}
        for number, path in enumerate(paths(images))
    ]
    parts = len(files)
    for number, name in enumerate(files):
        write_list(tmp_path / "data" / name, [*rows[number::parts], {"image": None, "label": 1, "words": "x"}])
    source = tmp_path / "data" / files[0] if parts == 1 else tmp_path / "data"
    report = build(
        str(source), str(tmp_path / "o"), Recipe(container=container, unit=4), Job(workers=2, runner="processes")
    )
    assert (report.found, report.written, report.errors) == (12 + parts, 12, {"no-path": parts})
    store = packer_reader.open(tmp_path / "o", split=None if parts == 1 else "train")
    wanted = {row["words"]: row for row in rows}
    for sample in store:
        row = wanted.pop(sample["words"])
        assert sample["label"] == row["label"]
        assert (sample["image"] == np.asarray(Image.open(io.BytesIO(row["image"]["bytes"])))).all()
    assert wanted == {}


def test_paths_beside_images_lead_nowhere_else(tmp_path: Path) -> None:
    hugging_face(tmp_path / "hf", ".csv")
    Image.new("RGB", (4, 4)).save(tmp_path / "secret.png")
    with (tmp_path / "hf" / "metadata.csv").open("a") as file:
        file.write(f"../secret.png,x,1\n{tmp_path / 'secret.png'},x,1\n")
    report = build(str(tmp_path / "hf"), str(tmp_path / "o"), Recipe(), Job(workers=1))
    assert (report.written, report.errors) == (5, {"unsupported": 2})


def test_lists_may_name_files_anywhere_and_leave_no_trace_of_it(images: Path, tmp_path: Path) -> None:
    first, second = paths(images)[:2]
    rows = [{"path": str(images / first), "label": 1}, {"path": f"./{second}", "label": 2}]
    store = converted(write_list(images / "absolute.csv", rows), tmp_path / "o")
    assert sorted(sample["label"] for sample in store) == [1, 2]
    assert str(images) not in (tmp_path / "o" / "manifest.json").read_text()


def test_masks_and_missing_values_of_a_list(tmp_path: Path) -> None:
    Image.new("RGB", (8, 6)).save(tmp_path / "i.png")
    Image.new("L", (8, 6), 4).save(tmp_path / "m.png")
    rows: Rows = [
        {"path": "i.png", "mask_file_name": "m.png", "words": "x", "info": {"a": [1, None]}},
        {"path": "i.png", "mask_file_name": "m.png"},
        {"path": "i.png", "words": "y"},
    ]
    store = converted(write_list(tmp_path / "l.jsonl", rows), tmp_path / "o", shuffle=False)
    assert [(s["mask"].max(), s["words"], s["info"]) for s in store] == [(4, "x", {"a": [1, None]}), (4, "", None)]
    assert json.loads((tmp_path / "o" / "errors.jsonl").read_text())["class"] == "no-mask"


def test_a_folder_that_may_be_two_things_asks_back(tmp_path: Path) -> None:
    for folder in ("images", "masks"):
        (tmp_path / "s" / folder).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "s" / folder / "0.png")
    (tmp_path / "s" / "metadata.csv").write_text("file_name\nimages/0.png\n")
    with pytest.raises(SourceError, match=r"may be metadata or pairs: say which, --from metadata\|pairs"):
        build(str(tmp_path / "s"), str(tmp_path / "o"), Recipe(), Job(workers=1))
    report = build(str(tmp_path / "s"), str(tmp_path / "o"), Recipe(), Job(workers=1, source_type="metadata"))
    assert report.written == 1
    with pytest.raises(UsageError, match="--field names columns of a list, and the source is none"):
        build(str(tmp_path / "s" / "images"), str(tmp_path / "p"), Recipe(), Job(workers=1, fields=("a=text:b",)))
    with pytest.raises(SourceError, match="--from pairs takes a folder with images/ and masks/"):
        build(str(tmp_path / "s" / "images"), str(tmp_path / "p"), Recipe(), Job(workers=1, source_type="pairs"))


def test_lists_resume_and_refuse_another_list(images: Path, tmp_path: Path) -> None:
    rows = [{"path": path, "words": "a"} for path in paths(images)]
    one = converted(write_list(images / "r.csv", rows), tmp_path / "a")
    other = converted(write_list(images / "r.csv", [row | {"words": "b"} for row in rows]), tmp_path / "b")
    assert one.manifest.content_digest != other.manifest.content_digest
    assert one.manifest.source["digest"] != other.manifest.source["digest"]
