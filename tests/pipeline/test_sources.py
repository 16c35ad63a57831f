"""The sources, by their contract."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from packer import Job, Recipe, build
from packer.sources.dataset import wrap_dataset
from packer.sources.detect import detect
from packer.sources.imagefolder import ImageFolder
from tests.conftest import make_serials, serial_image
from tests.contracts.source import SourceContract

if TYPE_CHECKING:
    from pathlib import Path

    from packer.sources.base import Source


class TestFolder(SourceContract):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        return ImageFolder((str(make_serials(tmp_path / "src", 12)),))


class TestTwoFolders(SourceContract):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        one, two = make_serials(tmp_path / "one", 6), make_serials(tmp_path / "two", 6, start=6)
        return ImageFolder((str(one), str(two)))


class TestTar(SourceContract):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        with tarfile.open(tmp_path / "s.tar", "w") as tar:
            tar.add(make_serials(tmp_path / "src", 12), "top")
        return ImageFolder((str(tmp_path / "s.tar"),))


class TestZip(SourceContract):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        root = make_serials(tmp_path / "src", 12)
        with zipfile.ZipFile(tmp_path / "s.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(root.rglob("*.png"), reverse=True):
                archive.write(path, path.relative_to(root))
        return ImageFolder((str(tmp_path / "s.zip"),))


def png(number: int) -> bytes:
    buffer = io.BytesIO()
    serial_image(number).save(buffer, "PNG")
    return buffer.getvalue()


class TestPython(SourceContract):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        made = wrap_dataset([{"image": png(n), "label": n % 3} for n in range(12)], None)
        return made.stored_at(tmp_path / "dataset.pickle")


class TestPairs(SourceContract):
    labels = frozenset()
    extras = ("mask",)

    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        for folder in ("images", "masks"):
            (tmp_path / "s" / folder).mkdir(parents=True)
            for number in range(12):
                (tmp_path / "s" / folder / f"{number}.png").write_bytes(png(number))
        return detect([str(tmp_path / "s")])


class TestList(SourceContract):
    extras = ("words", "score")

    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        rows = ["path,label,words,score"]
        for number in range(12):
            (tmp_path / f"{number}.png").write_bytes(png(number))
            rows.append(f"{number}.png,{number % 3},no. {number},{number / 4}")
        (tmp_path / "list.csv").write_text("\n".join(rows) + "\n")
        return detect([str(tmp_path / "list.csv")])


class TestBoxes(SourceContract):
    labels = frozenset()
    extras = ("boxes",)

    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        images = []
        for number in range(12):
            (tmp_path / f"{number}.png").write_bytes(png(number))
            images.append({"id": number, "file_name": f"{number}.png"})
        document = {"images": images, "annotations": [], "categories": [{"id": 1, "name": "x"}]}
        (tmp_path / "boxes.json").write_text(json.dumps(document))
        return detect([str(tmp_path / "boxes.json")])


def members(number: int) -> dict[str, bytes]:
    return {f"{number:03}.png": png(number), f"{number:03}.cls": b"%d" % (number % 3), f"{number:03}.txt": b"x"}


class TestWebDataset(SourceContract):
    extras = ("txt",)

    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        for shard in range(2):
            with tarfile.open(tmp_path / f"{shard}.tar", "w") as archive:
                for number in range(shard * 6, shard * 6 + 6):
                    for name, data in members(number).items():
                        info = tarfile.TarInfo(name)
                        info.size = len(data)
                        archive.addfile(info, io.BytesIO(data))
        return detect([str(tmp_path / "{0..1}.tar")])


class TestSidecars(SourceContract):
    extras = ("txt",)

    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        (tmp_path / "s").mkdir()
        for number in range(12):
            for name, data in members(number).items():
                (tmp_path / "s" / name).write_bytes(data)
        return detect([str(tmp_path / "s")])


class TestStore(SourceContract):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        build(str(make_serials(tmp_path / "src", 12)), str(tmp_path / "store"), Recipe(), Job(workers=1))
        return detect([str(tmp_path / "store")])


class TestYolo(SourceContract):
    labels = frozenset()
    extras = ("boxes",)

    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        for folder in ("images", "labels"):
            (tmp_path / "s" / folder).mkdir(parents=True)
        for number in range(12):
            (tmp_path / "s" / "images" / f"{number}.png").write_bytes(png(number))
            (tmp_path / "s" / "labels" / f"{number}.txt").write_text(f"{number % 3} 0.5 0.5 0.2 0.2\n")
        return detect([str(tmp_path / "s")])
