"""Promises about files of one stem: other people's shards and captions beside images come through whole."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
import webdataset
from PIL import Image

import packer_reader
from packer import Job, Recipe, build
from packer.sources.detect import detect
from packer_reader import StreamDataset
from packer_reader.errors import SourceError, UsageError
from tests.conftest import make_serials

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("careless_libraries")


def png(number: int, mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    colour: Any = (number, 7, 9) if mode == "RGB" else number
    Image.new(mode, (8, 6), colour).save(stream, "PNG")
    return stream.getvalue()


def record(number: int) -> dict[str, Any]:
    return {
        "__key__": f"d/{number:05}",
        "png": png(number),
        "cls": number % 3,
        "txt": f"no. {number}",
        "json": {"n": number},
        "seg.png": png(number, "L"),
    }


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("wds")
    with webdataset.ShardWriter(str(root / "part-%03d.tar"), maxcount=8, verbose=0) as writer:
        for number in range(30):
            writer.write(record(number))
    return root


def built(out: Path, *sources: Path | str, **options: Any) -> packer_reader.Store:
    build([str(source) for source in sources], str(out), Recipe(**options), Job(workers=1))
    return packer_reader.open(out)


@pytest.mark.parametrize("container", ["tar", "lmdb"])
@pytest.mark.parametrize("pattern", ["part-{000..003}.tar", "part-*.tar"])
def test_shards_of_webdataset_come_through_whole(pattern: str, container: Any, shards: Path, tmp_path: Path) -> None:
    store = built(tmp_path / "o", shards / pattern, container=container)
    assert [(f.name, f.kind, f.suffix) for f in store.manifest.fields] == [
        ("image", "image", "png"),
        ("label", "label", "cls"),
        ("json", "json", "json"),
        ("seg", "mask", "seg.png"),
        ("txt", "text", "txt"),
    ]
    assert store.manifest.source["type"] == "webdataset"
    seen = set()
    for sample in store:
        number = sample["json"]["n"]
        seen.add(number)
        assert sample["image"][0, 0].tolist() == [number, 7, 9]
        assert (sample["label"], sample["txt"], sample["seg"].max()) == (number % 3, f"no. {number}", number)
    assert seen == set(range(30))
    batch = next(iter(StreamDataset(tmp_path / "o", batch_size=30)))
    assert [doc["n"] % 3 for doc in batch["json"]] == batch["label"].tolist()


def test_what_was_written_is_read_by_webdataset_again(shards: Path, tmp_path: Path) -> None:
    built(tmp_path / "o", shards / "part-{000..003}.tar")
    again = webdataset.WebDataset(sorted(map(str, (tmp_path / "o").glob("*.tar"))), shardshuffle=False).decode("rgb8")
    found = list(again.to_tuple("png", "cls", "json", "txt"))
    assert sorted(document["n"] for _, _, document, _ in found) == list(range(30))
    assert all(pixels[0, 0, 0] == document["n"] for pixels, _, document, _ in found)


def test_one_tar_of_samples_is_told_from_a_tar_of_folders(shards: Path, tmp_path: Path) -> None:
    assert detect([str(shards / "part-000.tar")]).type == "webdataset"
    assert detect([str(shards)]).type == "webdataset"
    make_serials(tmp_path / "f", 4)
    with tarfile.open(tmp_path / "classes.tar", "w") as archive:
        archive.add(tmp_path / "f", ".")
    assert detect([str(tmp_path / "classes.tar")]).type == "imagefolder"
    with tarfile.open(tmp_path / "samples.tar", "w") as archive:
        for name, data in (("a.png", png(1)), ("a.txt", b"x")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    assert detect([str(tmp_path / "samples.tar")]).type == "webdataset"


def test_captions_beside_images(tmp_path: Path) -> None:
    root = tmp_path / "s"
    root.mkdir()
    for number in range(6):
        (root / f"{number}.png").write_bytes(png(number))
        (root / f"{number}.txt").write_text(f"é {number}")
        (root / f"{number}.JSON").write_text(json.dumps({"n": number}))
    (root / "6.png").write_bytes(png(6))  # no caption
    (root / "7.txt").write_text("no image")
    (root / "0.jpg").write_bytes(png(60))  # a second image of that name
    store = built(tmp_path / "o", root)
    assert store.manifest.source["type"] == "sidecars"
    found = {store.source(number): store[number] for number in range(len(store))}
    assert sorted(found) == ["0.jpg", "0.png", "1.png", "2.png", "3.png", "4.png", "5.png", "6.png"]
    assert (found["3.png"]["txt"], found["3.png"]["json"]) == ("é 3", {"n": 3})
    assert (found["6.png"]["txt"], found["6.png"]["json"]) == ("", None)
    assert found["0.jpg"]["txt"] == found["0.png"]["txt"] == "é 0"


def test_values_that_are_none_are_named(tmp_path: Path) -> None:
    root = tmp_path / "s"
    root.mkdir()
    for name, data in {
        "a.cls": b"x",
        "b.json": b"{",
        "b.cls": b"1",
        "c.cls": b"1",
        "c.json": b"1",
        "d.json": b"1",
    }.items():
        (root / name).write_bytes(data)
        (root / f"{name[0]}.png").write_bytes(png(1))
    (root / "a.json").write_bytes(b"1")
    report = build(str(root), str(tmp_path / "o"), Recipe(), Job(workers=1, source_type="sidecars"))
    assert (report.found, report.written, report.errors) == (4, 1, {"no-label": 1, "unsupported": 1, "corrupt": 1})


def test_pickled_fields_are_left_out_and_said(tmp_path: Path) -> None:
    root = tmp_path / "s"
    root.mkdir()
    (root / "a.png").write_bytes(png(1))
    (root / "a.txt").write_text("x")
    (root / "a.pyd").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    (root / "a.wav").write_bytes(b"RIFF")
    said = list[str]()

    class Listener:
        def begin(self, what: str, total: int) -> None: ...

        def advance(self, samples: int, source_bytes: int, skipped: int) -> None: ...

        def say(self, text: str) -> None:
            said.append(text)

    build(str(root), str(tmp_path / "o"), Recipe(), Job(workers=1, watcher=Listener()))
    assert said == [
        "1 files of field 'pyd' were left out: reading pickled values runs their code",
        "fields that were left out: 1 wav",
    ]
    assert [f.name for f in packer_reader.open(tmp_path / "o").manifest.fields] == ["image", "txt"]


def test_meta_and_a_json_of_the_source_are_one_too_many(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="field 'json' .json. cannot be stored: another field has this name, or lies under it"
    ):
        built(tmp_path / "o", shards / "part-{000..003}.tar", meta=True)


def test_a_source_without_images_lists_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "a.wav").write_bytes(b"x")
    with pytest.raises(SourceError, match=r"has an image \(fields found: wav\)"):
        build(str(tmp_path / "s"), str(tmp_path / "o"), Recipe(), Job(workers=1, source_type="sidecars"))
    with pytest.raises(SourceError, match="does not exist"):
        built(tmp_path / "o", tmp_path / "none-{0..2}.tar")


def test_workers_make_the_same_bytes(shards: Path, tmp_path: Path) -> None:
    for workers, name in ((1, "a"), (2, "b")):
        sources = [str(shards / "part-{000..003}.tar")]
        build(sources, str(tmp_path / name), Recipe(unit=4), Job(workers=workers, runner="processes"))
    one, other = (sorted(path for path in (tmp_path / name).rglob("*") if path.is_file()) for name in "ab")
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]
