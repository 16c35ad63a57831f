"""Data sets in Python: torch's, Hugging Face's and lists, through the same plan, journal and errors."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

import packer
import packer_reader
from packer import Job, Recipe
from packer_reader.errors import PackerError, ResumeError, SourceError, UsageError
from tests.conftest import serial_image, serial_of
from tests.faults import tree

if TYPE_CHECKING:
    from pathlib import Path


def png(number: int) -> bytes:
    buffer = io.BytesIO()
    serial_image(number).save(buffer, "PNG")
    return buffer.getvalue()


FORMS: dict[str, Any] = {
    "Pillow": serial_image,
    "bytes": png,
    "array": lambda n: np.asarray(serial_image(n)),
    "tensor": lambda n: torch.from_numpy(np.array(serial_image(n))).permute(2, 0, 1),
    "undecoded": lambda n: {"bytes": png(n), "path": None},
}


class Torch(torch.utils.data.Dataset[Any]):
    """A map-style data set of tuples, as torchvision's."""

    classes = ("zero", "one", "two")

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> tuple[Image.Image, int]:
        if number == 7:
            raise RuntimeError("a file is missing")
        return serial_image(number), number % 3


def serials_of(path: Path) -> dict[int, int]:
    store = packer_reader.open(path)
    return {serial_of(store[n]["image"]): int(store[n]["label"]) for n in range(len(store))}


@pytest.mark.parametrize("form", FORMS)
def test_images_come_in_many_forms(form: str, tmp_path: Path) -> None:
    samples = [{"img": FORMS[form](n), "y": n % 3} for n in range(10)]
    fields = {"image": "img", "label": "y"}
    report = packer.write(samples, str(tmp_path / "o.lmdb"), fields=fields, job=Job(workers=1))
    assert (report.written, report.skipped) == (10, 0)
    assert serials_of(tmp_path / "o.lmdb") == {n: n % 3 for n in range(10)}


def test_a_torch_data_set_and_its_failures(tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        packer.write(Torch(), str(tmp_path / name), recipe=Recipe(unit=5), workers=workers)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    store = packer_reader.open(tmp_path / "one")
    assert (len(store), store.classes, store.find("row 3") >= 0) == (23, ("zero", "one", "two"), True)
    line = json.loads((tmp_path / "one" / "errors.jsonl").read_text())
    assert (line["name"], line["class"]) == ("row 7", "unreadable")
    assert serials_of(tmp_path / "one") == {n: n % 3 for n in range(24) if n != 7}


def test_hugging_face_images_keep_their_bytes(tmp_path: Path) -> None:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["even", "odd"])})
    rows: dict[str, Any] = {
        "image": [{"bytes": png(n), "path": None} for n in range(8)],
        "label": [n % 2 for n in range(8)],
    }
    data = datasets.Dataset.from_dict(rows, features=features)
    packer.write(data, str(tmp_path / "o"), job=Job(workers=1))
    store = packer_reader.open(tmp_path / "o")
    assert store.classes == ("even", "odd")
    assert bytes(store.encoded(0)["png"]) in rows["image"][int(store.source(0).split()[1])]["bytes"]
    assert serials_of(tmp_path / "o") == {n: n % 2 for n in range(8)}


def test_sixteen_bits_and_gray(tmp_path: Path) -> None:
    deep = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16
    packer.write([{"image": deep}], str(tmp_path / "o"), recipe=Recipe(bits=16, gray=True), job=Job(workers=1))
    assert (packer_reader.open(tmp_path / "o")[0]["image"][..., 0] == deep).all()


def test_unlabelled_and_numbered_classes(tmp_path: Path) -> None:
    packer.write([{"image": png(n)} for n in range(3)], str(tmp_path / "none"), job=Job(workers=1))
    assert [field.name for field in packer_reader.open(tmp_path / "none").manifest.fields] == ["image"]
    packer.write([(png(n), 5 * n) for n in range(3)], str(tmp_path / "some"), job=Job(workers=1))
    store = packer_reader.open(tmp_path / "some")
    assert (store.classes, sorted(store.columns["label"])) == (None, [0, 5, 10])
    assert store.manifest.statistics["class_counts"] == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("sample", "failure", "reason"),
    [
        ({"image": png(1), "label": -1}, "unsupported", "the label is -1"),
        ({"image": png(1), "label": "cat"}, "unsupported", "the label is of type str"),
        ({"image": png(1), "label": 9}, "unsupported", "the label is 9, there are 2 classes"),
        ({"label": 1}, "unreadable", "the data set raised KeyError"),
        ({"image": np.zeros((4, 4)), "label": 1}, "unsupported", "the image is float64 of 2 dimensions"),
        ({"image": np.zeros((4, 4, 7), np.uint8), "label": 1}, "unsupported", "images have 1, 3 or 4 channels"),
        ({"image": b"nothing", "label": 1}, "not-an-image", "no image format"),
    ],
)
def test_bad_samples_are_lines(sample: Any, failure: str, reason: str, tmp_path: Path) -> None:
    data = [{"image": png(0), "label": 0}, sample]
    report = packer.write(data, str(tmp_path / "o"), classes=("a", "b"), job=Job(workers=1))
    line = json.loads((tmp_path / "o" / "errors.jsonl").read_text())
    assert (report.written, line["class"]) == (1, failure)
    assert reason in line["reason"]


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (iter([1]), {}, UsageError, "is no map-style data set"),
        ([], {}, SourceError, "has no samples"),
        ([{"picture": 1}], {}, UsageError, "samples have picture, none of them `image`"),
        ([1], {}, UsageError, "a sample is int"),
        ([{"image": b""}], {"fields": {"image": "image", "mask": "m"}}, UsageError, "and nothing else"),
        ([{"image": b""}], {"recipe": Recipe(val=0.5, stratify=True), "fields": {"image": "image", "label": "y"}},
         UsageError, "--stratify needs labels that are known before"),
        ([{"image": lambda: 0}], {"workers": 2}, SourceError, "cannot be pickled for worker processes"),
    ],
)  # fmt: skip
def test_odd_data_sets_are_refused(
    data: Any, options: dict[str, Any], error: type[PackerError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        packer.write(data, str(tmp_path / "o"), **options)
    assert not (tmp_path / "o").exists()


def test_the_command_imports_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    (tmp_path / "mydata.py").write_text(
        "import io\nfrom PIL import Image\n"
        "def make():\n    return [(Image.new('RGB', (8, 8), (n, 0, 77)), n % 2) for n in range(12)]\n"
        "ready = make()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for attribute, workers in (("make", 1), ("ready", 2)):
        out = tmp_path / f"{attribute}.lmdb"
        run("build", "--from", f"python:mydata:{attribute}", out, "--workers", workers)
        assert serials_of(out) == {n: n % 2 for n in range(12)}
    run("plan", "--from", "python:mydata:make")
    done = run("build", "--from", "python:mydata:gone", tmp_path / "x", exit_code=2)
    assert "has no attribute 'gone'" in done.stderr
    assert "No module named" in run("build", "--from", "python:nowhere:x", tmp_path / "x", exit_code=2).stderr


def test_an_unchanged_data_set_is_reused_by_content(tmp_path: Path) -> None:
    data = [{"image": png(n), "label": n % 2} for n in range(9)]
    packer.write(data, str(tmp_path / "old"), job=Job(workers=1))
    data[4] = {"image": png(99), "label": 0}
    packer.write(data, str(tmp_path / "new"), job=Job(workers=1, reuse=str(tmp_path / "old")))
    packer.write(data, str(tmp_path / "full"), job=Job(workers=1))
    assert tree(tmp_path / "new") == tree(tmp_path / "full")
    assert 99 in serials_of(tmp_path / "new")


class Own:
    """A data set of its own class numbering, made without arguments."""

    classes = ("b", "a")

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> tuple[bytes, int]:
        return png(number), number % 2


def test_known_classes_come_first_and_labels_follow(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("x\na\n")
    job = Job(workers=1, classes=str(tmp_path / "classes.txt"))
    packer.write(Own(), str(tmp_path / "o"), job=job)
    store = packer_reader.open(tmp_path / "o")
    assert store.classes == ("x", "a", "b")
    assert serials_of(tmp_path / "o") == {0: 2, 1: 1, 2: 2, 3: 1}
    packer.write(Own(), str(tmp_path / "named"), classes=("one", "two"), job=Job(workers=1))
    assert packer_reader.open(tmp_path / "named").classes == ("one", "two")


def test_an_interrupted_data_set_is_not_mixed_with_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def data(value: int) -> list[dict[str, Any]]:
        return [{"image": np.full((8, 8, 3), value, np.uint8), "label": 0} for _ in range(20)]

    monkeypatch.setattr("packer.convert.publish", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        packer.write(data(10), str(tmp_path / "o"), job=Job(workers=1))
    monkeypatch.undo()
    with pytest.raises(ResumeError, match="the source's files"):
        packer.write(data(200), str(tmp_path / "o"), job=Job(workers=1))
    packer.write(data(10), str(tmp_path / "o"), job=Job(workers=1))


def test_what_cannot_be_pickled_is_read_in_this_process(tmp_path: Path) -> None:
    data = [{"image": png(n), "label": n % 2, "extra": lambda: 0} for n in range(6)]
    report = packer.write(data, str(tmp_path / "o.lmdb"), job=Job(runner="serial"), recipe=Recipe(resize=(8,)))
    assert (report.written, packer_reader.open(tmp_path / "o.lmdb").manifest.kind) == (6, "lmdb")


@pytest.mark.parametrize("mode", ["P", "LA", "RGBA", "CMYK", "1", "L", "RGB"])
def test_pillow_modes_follow_the_rules_for_files(mode: str, tmp_path: Path) -> None:
    image = Image.new("RGB", (6, 4), (255, 255, 255)).convert(mode)
    image.getexif()[0x0112] = 6
    packer.write([{"image": image}], str(tmp_path / mode), job=Job(workers=1))
    stored = packer_reader.open(tmp_path / mode)[0]["image"]
    assert stored.shape == (6, 4, 3)
    assert (stored == 255).all()


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pillow_modes_without_a_range_are_refused(mode: str, tmp_path: Path) -> None:
    data = [{"image": png(1)}, {"image": Image.new(mode, (4, 4), 70000)}]
    assert packer.write(data, str(tmp_path / "o"), job=Job(workers=1)).errors == {"unsupported": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise RuntimeError('no network')", "raised RuntimeError: no network"),
        ("def make():\n    raise FileExistsError('x')", "raised FileExistsError"),
        ("make = 3", "is no map-style data set"),
        ("class make:\n    def __init__(self, root): pass", "raised TypeError"),
        ("class make(list):\n    def __len__(self): return 1", "raised IndexError"),
    ],
)
def test_the_code_of_others_gives_one_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    name = f"broken{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    done = run("build", "--from", f"python:{name}:make", tmp_path / "o", exit_code=2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


class Odd:
    """Raises what no data set should."""

    def __init__(self, error: Any) -> None:
        self.error = error

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> Any:
        if number == 1:
            raise self.error
        return png(number), number


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), RuntimeError("x"), MemoryError()])
@pytest.mark.parametrize("workers", [1, 2])
def test_whatever_a_sample_raises_is_a_line(error: Any, workers: int, tmp_path: Path) -> None:
    report = packer.write(Odd(error), str(tmp_path / "o"), workers=workers, recipe=Recipe(unit=1))
    assert (report.written, report.errors) == (2, {"unreadable": 1})


def test_an_exit_in_a_module_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert "raised SystemExit" in run("build", "--from", "python:leaves:x", tmp_path / "o", exit_code=2).stderr


def test_pixels_of_another_shape_are_other_pixels(tmp_path: Path) -> None:
    packer.write([{"image": np.zeros((10, 20, 3), np.uint8)}], str(tmp_path / "old"), job=Job(workers=1))
    job = Job(workers=1, reuse=str(tmp_path / "old"))
    packer.write([{"image": np.zeros((20, 10, 3), np.uint8)}], str(tmp_path / "new"), job=job)
    assert packer_reader.open(tmp_path / "new")[0]["image"].shape == (20, 10, 3)


@pytest.mark.parametrize("data", [bytearray(png(5)), memoryview(png(5))])
def test_bytes_may_come_as_buffers(data: Any, tmp_path: Path) -> None:
    packer.write([{"image": {"bytes": data}}, {"image": data}], str(tmp_path / "o"), job=Job(workers=1))
    assert serial_of(packer_reader.open(tmp_path / "o")[1]["image"]) == 5
