"""Damage: found, located, named, with exit code 4; never a wrong sample, a crash, or fewer samples without a word."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import packer_reader
from packer_reader.check import check_store
from packer_reader.errors import DamageError, FormatError, NotAStoreError, StoreError, VersionError
from tests.faults import edit_manifest, flip_byte, truncate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    """A copy of either store, to be hurt."""
    shutil.copytree(store, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def tar_copy(tar_store: Path, tmp_path: Path) -> Path:
    """A copy of the tar store, to be hurt."""
    shutil.copytree(tar_store, tmp_path / "copy")
    return tmp_path / "copy"


def findings(path: Path, *, full: bool = True) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in check_store(path, full=full):
        found.setdefault(finding.file, []).append(str(finding))
    return found


def read_all(path: Path) -> None:
    opened = packer_reader.open(path)
    for number in range(len(opened)):
        assert opened[number]["image"].shape == (16, 16, 3)


def test_a_sound_store_has_no_findings(copy: Path) -> None:
    assert findings(copy) == findings(copy, full=False) == {}


def test_any_flipped_byte_is_found_in_its_file(copy: Path) -> None:
    for path in sorted(p for p in copy.rglob("*") if p.is_file() and p.stat().st_size):
        name, size = path.relative_to(copy).as_posix(), path.stat().st_size
        for place in {0, size // 3, size // 2, size - 1}:
            flip_byte(path, place)
            assert name in findings(copy), (name, place)
            flip_byte(path, place)
    assert findings(copy) == {}


@pytest.mark.parametrize("share", [0, 0.3, 0.999])
def test_any_cut_file_is_found_and_never_read(share: float, copy: Path) -> None:
    for path in sorted(p for p in copy.rglob("*") if p.is_file() and p.stat().st_size):
        whole = path.read_bytes()
        truncate(path, int(len(whole) * share))
        assert path.relative_to(copy).as_posix() in findings(copy, full=False)
        with pytest.raises(StoreError):
            read_all(copy)
        path.write_bytes(whole)


def test_a_removed_file_is_found(copy: Path) -> None:
    for path in sorted(p for p in copy.rglob("*") if p.is_file() and p.name != "manifest.json"):
        whole = path.read_bytes()
        path.unlink()
        assert path.relative_to(copy).as_posix() in findings(copy, full=False)
        with pytest.raises(NotAStoreError, match=f"{path.name} is missing from store"):
            packer_reader.open(copy)
        path.write_bytes(whole)


def test_swapped_shards_are_found(tar_copy: Path) -> None:
    one, two = (tar_copy / f"train-00000{n}.tar" for n in (0, 1))
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert {one.name, two.name} <= set(findings(tar_copy))


def test_an_added_file_is_found(copy: Path) -> None:
    (copy / "train-000077.tar").write_bytes(b"x")
    assert list(findings(copy, full=False)) == ["train-000077.tar"]


@pytest.mark.parametrize("changes", [{"samples": 3}, {"classes": ["x", "y", "z"]}, {"version": 2}, {"kind": "zip"}])
def test_an_edited_manifest_is_found(changes: dict[str, Any], copy: Path) -> None:
    edit_manifest(copy, **changes)
    assert list(findings(copy)) == ["manifest.json"]
    with pytest.raises((FormatError, VersionError)):
        packer_reader.open(copy)


def test_a_damaged_sample_is_named_with_its_source(copy: Path) -> None:
    opened = packer_reader.open(copy)
    name = "train-000000.tar" if (copy / "train-000000.tar").exists() else "data.mdb"
    needle = opened.encoded(5)["png"]
    place = (copy / name).read_bytes().find(needle) + len(needle) // 2
    key, source = int(opened.index(0).key[5]), opened.source(5)
    flip_byte(copy / name, place)
    (text,) = [line for line in findings(copy)[name] if "key" in line]
    assert f"key {key:016d} (from {source!r}) is missing, or differs from its CRC-32" in text
    with pytest.raises(
        DamageError, match=f"damaged at key {key} .sample 5, made from {source!r}: .*: run `packer verify"
    ):
        read_all(copy)


def test_gaps_and_foreign_members_in_a_shard_are_found(tar_copy: Path) -> None:
    path = tar_copy / "train-000000.tar"
    data = path.read_bytes()
    path.write_bytes(data[:-1024] + data[:1024] + data[-1024:])
    assert path.name in findings(tar_copy)


@pytest.mark.parametrize(
    ("hurt", "message"),
    [
        (lambda p: (p / "manifest.json").unlink(), "no complete store, it has no manifest.json"),
        (shutil.rmtree, "does not exist"),
    ],
)
def test_no_store_says_what_to_do(hurt: Callable[[Path], None], message: str, copy: Path) -> None:
    hurt(copy)
    with pytest.raises(NotAStoreError, match=message):
        packer_reader.open(copy)


def test_opening_runs_no_code_and_writes_nothing(copy: Path) -> None:
    before = sorted(path.stat().st_mtime_ns for path in copy.rglob("*"))
    read_all(copy)
    assert sorted(path.stat().st_mtime_ns for path in copy.rglob("*")) == before
    assert not (copy / "lock.mdb").exists()


def test_the_reader_alone_can_check(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from packer_reader.__main__ import main

    assert main(["verify", str(copy), "--full"]) == 0
    assert main(["inspect", str(copy), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["samples"] == 60
    assert main(["inspect", str(copy), "--sample", "a/00003.png"]) == 0
    flip_byte(copy / "classes.txt", 0)
    assert main(["verify", str(copy), "--json"]) == 4
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [finding["file"] for finding in found["findings"]] == ["classes.txt"]
    assert main(["verify", str(copy.parent / "gone")]) == 4
