"""Tar and zip archives as folders: the same store as from the unpacked files, and nothing is ever extracted."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

import packer_reader
from packer import Job, Recipe, build
from packer.job import Silent
from packer.sources.files import read_ref
from packer_reader.errors import SourceError
from tests.conftest import make_serials, serial_image, serial_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ONE = Job(workers=1)


def png(number: int) -> bytes:
    buffer = io.BytesIO()
    serial_image(number).save(buffer, "PNG")
    return buffer.getvalue()


def tar_of(members: dict[str, bytes], **options: Any) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", **options) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zip_of(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return buffer.getvalue()


def stored(path: Path, tmp_path: Path) -> tuple[dict[str, tuple[int, int]], list[dict[str, Any]]]:
    """Source name to (serial number, label), and the lines of errors.jsonl."""
    build(str(path), str(tmp_path / "o"), Recipe(), ONE)
    store = packer_reader.open(tmp_path / "o")
    found = {store.source(n): (serial_of(store[n]["image"]), store[n].get("label", -1)) for n in range(len(store))}
    return found, [json.loads(line) for line in (tmp_path / "o" / "errors.jsonl").read_text().splitlines()]


CLASSES = {f"{'ab'[n % 2]}/{n}.png": png(n) for n in range(6)}


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("s.tar", tar_of),
        ("s.zip", zip_of),
        ("s.ZIP", lambda members: zip_of(members, zipfile.ZIP_STORED)),
        ("gnu.tar", lambda members: tar_of(members, format=tarfile.GNU_FORMAT)),
        ("pax.tar", lambda members: tar_of(members, format=tarfile.PAX_FORMAT)),
    ],
)
def test_an_archive_is_the_folder_it_was_made_of(name: str, make: Callable[..., bytes], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(make(CLASSES))
    assert stored(tmp_path / name, tmp_path) == ({f"{'ab'[n % 2]}/{n}.png": (n, n % 2) for n in range(6)}, [])


@pytest.mark.parametrize("make", [tar_of, zip_of])
def test_the_one_folder_around_everything_is_no_class(make: Callable[..., bytes], tmp_path: Path) -> None:
    (tmp_path / "s.tar").write_bytes(b"")
    path = tmp_path / ("s.tar" if make is tar_of else "s.zip")
    path.write_bytes(make({f"dataset/{name}": data for name, data in CLASSES.items()}))
    found, errors = stored(path, tmp_path)
    assert {name: label for name, (_, label) in found.items()} == {
        f"dataset/{name}": "ab".index(name[0]) for name in CLASSES
    }
    assert errors == []


@pytest.mark.parametrize("nested", ["in a folder", "in a tar", "in a stored zip"])
def test_archives_among_the_classes_are_classes(nested: str, tmp_path: Path) -> None:
    inner = {f"n{c}.tar": tar_of({f"n{c}_{n}.png": png(10 * c + n) for n in range(3)}) for c in (1, 2)}
    path = tmp_path / "train"
    if nested == "in a folder":
        path.mkdir()
        for name, data in inner.items():
            (path / name).write_bytes(data)
    elif nested == "in a tar":
        path = tmp_path / "train.tar"
        path.write_bytes(tar_of(inner))
    else:
        path = tmp_path / "train.zip"
        path.write_bytes(zip_of(inner, zipfile.ZIP_STORED))
    found, errors = stored(path, tmp_path)
    assert found == {f"n{c}.tar/n{c}_{n}.png": (10 * c + n, c - 1) for c in (1, 2) for n in range(3)}
    assert errors == []
    assert packer_reader.open(tmp_path / "o").classes == ("n1", "n2")


def test_split_folders_count_inside_archives_too(tmp_path: Path) -> None:
    (tmp_path / "s.zip").write_bytes(zip_of({f"{split}/a/{n}.png": png(n) for n, split in enumerate(["train", "val"])}))
    report = build(str(tmp_path / "s.zip"), str(tmp_path / "o"), Recipe(), ONE)
    assert report.splits == {"train": 1, "val": 1}


def test_what_leads_out_or_elsewhere_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO(tar_of({"../out.png": png(1), "/abs.png": png(2), "a/x/../../../y.png": png(3)}))
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        for kind, name in (
            (tarfile.SYMTYPE, "a/link.png"),
            (tarfile.LNKTYPE, "a/hard.png"),
            (tarfile.FIFOTYPE, "a/p.png"),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        info = tarfile.TarInfo("a/good.png")
        info.size = len(png(4))
        tar.addfile(info, io.BytesIO(png(4)))
    (tmp_path / "s.tar").write_bytes(buffer.getvalue())
    found, errors = stored(tmp_path / "s.tar", tmp_path)
    assert list(found) == ["a/good.png"]
    assert sorted(error["name"] for error in errors) == [
        "../out.png", "/abs.png", "a/hard.png", "a/link.png", "a/p.png", "a/x/../../../y.png",
    ]  # fmt: skip
    assert {error["class"] for error in errors} == {"unsupported"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o", "s.tar"]


def test_a_name_that_comes_twice_is_reported(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in (1, 2):
            info = tarfile.TarInfo("1.png")
            info.size = len(png(number))
            tar.addfile(info, io.BytesIO(png(number)))
    (tmp_path / "s.tar").write_bytes(buffer.getvalue())
    found, errors = stored(tmp_path / "s.tar", tmp_path)
    assert found == {"1.png": (1, -1)}
    assert [error["class"] for error in errors] == ["duplicate"]


WHOLE = tar_of({f"{n}.png": png(n) for n in range(4)})


@pytest.mark.parametrize("end", [*range(700, 4096, 211), 1024, 2048, 3072, 4096, 4096 + 512])
def test_a_cut_archive_gives_what_is_whole_and_says_so(end: int, tmp_path: Path) -> None:
    (tmp_path / "s.tar").write_bytes(WHOLE[:end])
    found, errors = stored(tmp_path / "s.tar", tmp_path)
    assert set(found) <= {f"{n}.png" for n in range(4)}
    assert len(found) == 4 if end > 4096 else len(found) <= end // 1024 + 1
    if end == 4096 + 512:
        assert errors == []  # the end is there
    else:
        assert [error["class"] for error in errors] == ["truncated"]


@pytest.mark.parametrize("member", [1, 2, 3])
def test_a_damaged_header_loses_nothing_in_silence(member: int, tmp_path: Path) -> None:
    data = bytearray(WHOLE)
    data[member * 1024 + 150] ^= 0x10  # the checksum of its header
    (tmp_path / "s.tar").write_bytes(data)
    found, errors = stored(tmp_path / "s.tar", tmp_path)
    assert len(found) == member
    assert [error["name"] for error in errors] == ["(the rest of the archive)"]


def test_archives_end_to_end_lose_nothing_in_silence(tmp_path: Path) -> None:
    (tmp_path / "s.tar").write_bytes(WHOLE + tar_of({"9.png": png(9)}))
    found, errors = stored(tmp_path / "s.tar", tmp_path)
    assert (len(found), len(errors)) == (4, 1)


def test_a_bit_that_flips_in_a_zip_is_found(tmp_path: Path) -> None:
    data = bytearray(zip_of(CLASSES, zipfile.ZIP_STORED))
    data[data.index(png(3)) + 60] ^= 1
    (tmp_path / "s.zip").write_bytes(data)
    found, errors = stored(tmp_path / "s.zip", tmp_path)
    assert "b/3.png" not in found
    assert [(error["name"], error["class"]) for error in errors] == [("b/3.png", "corrupt")]


@pytest.mark.parametrize("level", ["classes", "splits"])
def test_an_archive_beside_folders_is_no_class(level: str, tmp_path: Path) -> None:
    root = tmp_path / "s"
    for name in ("train", "val") if level == "splits" else ("",):
        make_serials(root / name, 6, "ab", start=len(name))
    (root / "archive.zip").write_bytes(zip_of(CLASSES))
    build(str(root), str(tmp_path / "o"), Recipe(), heard := Job(workers=1, watcher=Heard()))
    stores = [tmp_path / "o" / name for name in ("train", "val")] if level == "splits" else [tmp_path / "o"]
    assert {packer_reader.open(store).classes for store in stores} == {("a", "b")}
    assert "'archive.zip' lies beside folders and was left out" in heard.watcher.said[0]  # type: ignore[attr-defined]


class Heard(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def test_an_archive_of_one_split_is_that_split(tmp_path: Path) -> None:
    (tmp_path / "s.zip").write_bytes(zip_of({f"train/{name}": data for name, data in CLASSES.items()}))
    report = build(str(tmp_path / "s.zip"), str(tmp_path / "o"), Recipe(), ONE)
    assert report.splits == {"train": 6}


def test_compressed_lists_are_no_data(tmp_path: Path) -> None:
    root = make_serials(tmp_path / "s", 4, "a")
    (root / "a" / "labels.csv.gz").write_bytes(b"x")
    assert len(stored(root, tmp_path)[0]) == 4


def test_bad_archives_among_good_ones_are_one_line_each(tmp_path: Path) -> None:
    root = make_serials(tmp_path / "s", 4, "a")
    (root / "a" / "text.tar").write_text("no archive at all")
    (root / "a" / "zero.zip").write_bytes(b"")
    (root / "a" / "x.tar.gz").write_bytes(b"\x1f\x8b")
    (root / "a" / "flip.zip").write_bytes(zip_of({"1.png": png(9)})[:-4])
    found, errors = stored(root, tmp_path)
    assert len(found) == 4
    assert {error["name"]: error["class"] for error in errors} == {
        "a/text.tar": "corrupt", "a/zero.zip": "empty", "a/x.tar.gz": "unsupported", "a/flip.zip": "corrupt",
    }  # fmt: skip


def test_encrypted_and_oddly_packed_members_are_said(tmp_path: Path) -> None:
    data = bytearray(zip_of({"a/1.png": png(1), "a/2.png": png(2)}, zipfile.ZIP_STORED))
    entry = data.index(b"PK\x01\x02")
    data[entry + 8] |= 1  # encrypted
    data += b""
    (tmp_path / "s.zip").write_bytes(bytes(data))
    found, errors = stored(tmp_path / "s.zip", tmp_path)
    assert (list(found), [error["name"] for error in errors]) == (["a/2.png"], ["a/1.png"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.tar", b"", "the archive has no bytes"),
        ("s.tar", b"nonsense" * 99, "it is no tar archive, or it is damaged"),
        ("s.zip", b"nonsense" * 99, "it is no zip archive, or it is damaged"),
        ("s.tar.gz", b"x", "cannot be read in places: unpack it"),
        ("s.doc", b"x", "is a file: give the folder that holds the images, a .tar or .zip archive of it, a list"),
        ("s.tar", tar_of({"a/1.txt": b"x"}), r"no images in '.*' \(found: 1 .txt\)"),
        ("s.tar", tar_of({"0.cls": b"1", "0.jpg": b"x"}), "none of the 1 samples could be converted"),
    ],
)
def test_a_source_that_is_no_archive_of_images_says_so(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        build(str(tmp_path / name), str(tmp_path / "o"), Recipe(), ONE)


def test_an_archive_that_changes_meanwhile_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(tar_of(CLASSES))

    def later(root: str, ref: Any) -> bytes:
        os.utime(path, ns=(1, 1))
        return read_ref(root, ref)

    monkeypatch.setattr("packer.sources.imagefolder.read_ref", later)
    with pytest.raises(SourceError, match="the archive has changed since the source was listed"):
        build(str(path), str(tmp_path / "o"), Recipe(), ONE)


def test_many_workers_read_one_archive(tmp_path: Path) -> None:
    (tmp_path / "s.zip").write_bytes(zip_of({f"a/{n:03}.png": png(n) for n in range(64)}))
    build(str(tmp_path / "s.zip"), str(tmp_path / "one"), Recipe(unit=8), ONE)
    build(str(tmp_path / "s.zip"), str(tmp_path / "two"), Recipe(unit=8), Job(workers=2))
    assert (tmp_path / "one" / "manifest.json").read_bytes() == (tmp_path / "two" / "manifest.json").read_bytes()


def test_names_of_linux_zips_are_those_of_the_file_system(tmp_path: Path) -> None:
    data = zip_of({"aa/1.png": png(1), "bb/2.png": png(2)})
    (tmp_path / "s.zip").write_bytes(data.replace(b"aa/", "é/".encode()).replace(b"bb/", b"\xff\xfe/"))
    found, _ = stored(tmp_path / "s.zip", tmp_path)
    assert packer_reader.open(tmp_path / "o").classes == ("é", "\udcff\udcfe")
    assert set(found) == {"é/1.png", "\udcff\udcfe/2.png"}


def test_archives_that_lead_out_are_said_and_other_files_counted(tmp_path: Path) -> None:
    members = {"../n1.tar": tar_of({"1.png": png(1)}), "/abs/x.txt": b"x", "a/1.png": png(1)}
    (tmp_path / "s.tar").write_bytes(tar_of(members))
    found, errors = stored(tmp_path / "s.tar", tmp_path)
    assert (list(found), [error["name"] for error in errors]) == (["a/1.png"], ["../n1.tar"])
    assert packer_reader.open(tmp_path / "o").manifest.source["ignored"] == {".txt": 1}


@pytest.mark.parametrize("size", ["-512", "-1536", "-2048"])
def test_a_member_of_negative_size_ends_the_list(size: str, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(3):
            info = tarfile.TarInfo(f"{number}.png")
            info.size = len(png(number))
            if number == 1:
                info.pax_headers = {"size": size}
            tar.addfile(info, io.BytesIO(png(number)))
    (tmp_path / "s.tar").write_bytes(buffer.getvalue())
    found, errors = stored(tmp_path / "s.tar", tmp_path)
    assert "0.png" in found
    assert len(errors) == 1


def test_a_bomb_of_archives_is_not_unrolled(tmp_path: Path) -> None:
    inner = tar_of({"1.png": png(1)})
    data = bytearray(zip_of({f"{n:02}.tar": inner if n == 0 else b"" for n in range(20)}, zipfile.ZIP_STORED))
    for _ in range(2):  # all entries of the list point at the first member
        place, first = 0, None
        while (place := data.find(b"PK\x01\x02", place + 1)) > 0:
            first = first or bytes(data[place + 16 : place + 28])
            data[place + 16 : place + 28] = first
            data[place + 42 : place + 46] = bytes(4)
    (tmp_path / "s.zip").write_bytes(data)
    found, errors = stored(tmp_path / "s.zip", tmp_path)
    assert len(found) < 3
    assert {error["class"] for error in errors} == {"corrupt"}


@pytest.mark.parametrize("kind", ["long names", "a huge name"])
def test_headers_made_to_hurt_are_one_line(kind: str, tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type = tarfile.GNUTYPE_LONGNAME
    info.size = 0 if kind == "long names" else 60 << 30
    header = info.tobuf(tarfile.GNU_FORMAT)
    path = tmp_path / "s.tar"
    with path.open("wb") as file:
        file.write(header * (5000 if kind == "long names" else 1))
        file.truncate(file.tell() + 1024 if kind == "long names" else 61 << 30)
    with pytest.raises(SourceError, match=r"it is no tar archive, or it is damaged|no images in"):
        build(str(path), str(tmp_path / "o"), Recipe(), ONE)


def test_a_split_that_is_only_an_archive_is_read(tmp_path: Path) -> None:
    root = tmp_path / "s"
    make_serials(root / "val", 4, "ab")
    (root / "train.tar").write_bytes(tar_of(CLASSES))
    assert build(str(root), str(tmp_path / "o"), Recipe(), ONE).splits == {"train": 6, "val": 4}


def test_a_slash_behind_an_archive_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "s.tar").write_bytes(tar_of(CLASSES))
    assert build(f"{tmp_path}/s.tar/", str(tmp_path / "o"), Recipe(), ONE).written == 6


def test_reuse_compares_the_content_of_members(tmp_path: Path) -> None:
    path, old = tmp_path / "s.tar", (1_000_000_000, 1_000_000_000)
    for name, member in (("old", 3), ("new", 8)):
        path.write_bytes(tar_of({"a/1.png": png(member)} | {f"a/{n}x.png": png(n) for n in range(member)}))
        os.utime(path, ns=old)
        reuse = {} if name == "old" else {"reuse": str(tmp_path / "old")}
        build(str(path), str(tmp_path / name), Recipe(), Job(workers=1, **reuse))  # type: ignore[arg-type]
    store = packer_reader.open(tmp_path / "new")
    assert serial_of(store[store.find("a/1.png")]["image"]) == 8
