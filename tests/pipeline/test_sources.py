"""The sources, by their contract."""

from __future__ import annotations

import io
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from packer.sources.dataset import wrap_dataset
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
