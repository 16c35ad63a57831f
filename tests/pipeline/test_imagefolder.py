"""Listing image folders: torchvision's conventions, nothing lost without a word."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from packer.sample import Ref
from packer.sources.detect import detect
from packer.sources.imagefolder import ImageFolder
from packer.sources.refs import RefTable, RefWriter
from packer_reader.errors import SampleError, SourceError, UsageError
from tests.conftest import make_serials

if TYPE_CHECKING:
    from packer.sources.base import Listing


def touch(root: Path, *names: str | bytes) -> Path:
    for name in names:
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(os.fsdecode(path)).write_bytes(b"x")
    return root


def scan(root: Path, tmp_path: Path) -> tuple[Listing, list[tuple[str, int]]]:
    folder = tmp_path / "refs"
    folder.mkdir(exist_ok=True)
    with RefWriter(folder) as writer:
        listing = ImageFolder((str(root),)).scan(writer)
    table = RefTable(folder)
    return listing, [(table[n].name, table[n].label) for n in range(len(table))]


def test_classes_are_the_sorted_folders(tmp_path: Path) -> None:
    listing, refs = scan(touch(tmp_path / "s", "10/a.png", "2/b.JPG", "B/deep/er/c.webp", "a/d.jpeg"), tmp_path)
    assert listing.classes == ("10", "2", "B", "a")
    assert refs == [("10/a.png", 0), ("2/b.JPG", 1), ("B/deep/er/c.webp", 2), ("a/d.jpeg", 3)]


def test_a_flat_folder_has_no_classes(tmp_path: Path) -> None:
    listing, refs = scan(touch(tmp_path / "s", "b.png", "a.png"), tmp_path)
    assert listing.classes is None
    assert refs == [("a.png", -1), ("b.png", -1)]


def test_split_folders_share_one_class_map(tmp_path: Path) -> None:
    listing, refs = scan(touch(tmp_path / "s", "train/b/1.png", "val/a/2.png", "val/b/3.png"), tmp_path)
    assert (listing.classes, listing.splits) == (("a", "b"), ("train", "val"))
    assert refs == [("train/b/1.png", 1), ("val/a/2.png", 0), ("val/b/3.png", 1)]


def test_only_all_folders_together_are_splits(tmp_path: Path) -> None:
    listing, _ = scan(touch(tmp_path / "s", "train/1.png", "dog/2.png"), tmp_path)
    assert (listing.classes, listing.splits) == (("dog", "train"), ())


def test_two_folders_of_one_split_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"\['val', 'valid'\].* are the same split 'val'"):
        scan(touch(tmp_path / "s", "val/a/1.png", "valid/a/2.png"), tmp_path)


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    listing, refs = scan(touch(tmp_path / "s", "a/1.png", "a/notes.txt", "a/x.csv", "a/README"), tmp_path)
    assert len(refs) == 1
    assert dict(listing.ignored) == {".txt": 1, ".csv": 1, "": 1}


def test_junk_is_no_class_and_no_sample(tmp_path: Path) -> None:
    junk = ("a/._1.png", ".git/x.png", "__MACOSX/a/1.png", ".ipynb_checkpoints/1.png", "a/.h.png", "Thumbs.db")
    listing, refs = scan(touch(tmp_path / "s", "a/1.png", *junk), tmp_path)
    assert (listing.classes, refs) == (("a",), [("a/1.png", 0)])


def test_loose_files_beside_classes_are_reported(tmp_path: Path) -> None:
    listing, refs = scan(touch(tmp_path / "s", "a/1.png", "loose.png"), tmp_path)
    assert [(p.name, p.failure) for p in listing.problems] == [("loose.png", "no-class")]
    assert (listing.found, len(refs)) == (2, 1)


def test_an_empty_class_keeps_its_index(tmp_path: Path) -> None:
    (tmp_path / "s" / "b").mkdir(parents=True)
    listing, refs = scan(touch(tmp_path / "s", "a/1.png", "c/2.png"), tmp_path)
    assert (listing.classes, refs[-1]) == (("a", "b", "c"), ("c/2.png", 2))
    assert "class folder 'b' holds no image; it keeps its index 1" in listing.notices


def test_links_are_followed_but_never_up(tmp_path: Path) -> None:
    root = touch(tmp_path / "s", "real/1.png")
    touch(tmp_path / "elsewhere", "2.png")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "real" / "loop").symlink_to("..")
    (root / "real" / "self.png").symlink_to("self.png")
    (root / "real" / "gone.png").symlink_to("nowhere.png")
    listing, refs = scan(root, tmp_path)
    assert [name for name, _ in refs] == ["linked/2.png", "real/1.png"]
    assert [(p.name, p.failure) for p in listing.problems] == [
        ("real/gone.png", "unreadable"),
        ("real/self.png", "unreadable"),
    ]
    assert any("'real/loop' is a link to a folder above it" in notice for notice in listing.notices)


def test_pipes_and_sockets_do_not_block(tmp_path: Path) -> None:
    root = touch(tmp_path / "s", "a/1.png")
    os.mkfifo(root / "a" / "pipe.png")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "a" / "socket.png"))
        listing, refs = scan(root, tmp_path)
    assert [(p.name, p.reason) for p in listing.problems] == [
        ("a/pipe.png", "it is not a regular file"),
        ("a/socket.png", "it is not a regular file"),
    ]
    assert len(refs) == 1


def test_any_name_comes_back(tmp_path: Path) -> None:
    names = [
        b"a/new\nline.png",
        b"a/raw_\xff\xfe.png",
        "a/日本語 🐈.png".encode(),
        b"a/-rf.png",
        b"a/" + b"q" * 251 + b".png",
    ]
    _, refs = scan(touch(tmp_path / "s", *names), tmp_path)
    assert sorted(os.fsencode(name) for name, _ in refs) == sorted(names)


def test_the_digest_sees_names_sizes_and_times(tmp_path: Path) -> None:
    root = make_serials(tmp_path / "s", 6)
    digests = [scan(root, tmp_path)[0].digest]
    digests.append(scan(root, tmp_path)[0].digest)
    os.utime(root / "a" / "00000.png", ns=(5, 5))
    digests.append(scan(root, tmp_path)[0].digest)
    (root / "a" / "00000.png").rename(root / "a" / "x.png")
    digests.append(scan(root, tmp_path)[0].digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("names", "message"),
    [([], "no images in .*found: nothing"), (["a/x.txt", "y.txt"], "no images in .*found: 2 .txt.*: give the folder")],
)
def test_a_source_without_images_is_refused(names: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with pytest.raises(SourceError, match=message):
        scan(touch(tmp_path / "s", *names), tmp_path)


def test_detection_says_what_is_wrong(tmp_path: Path, tar_store: Path) -> None:
    touch(tmp_path, "file")
    for path, message in (("gone", "does not exist"), ("file", "is a file")):
        with pytest.raises(SourceError, match=message):
            detect([str(tmp_path / path)])
    assert detect([str(tar_store)]).type == "store"
    with pytest.raises(UsageError, match="--from is 'zip', it must be one of imagefolder"):
        detect([str(tmp_path)], "zip")


def test_a_file_that_has_grown_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "1.png").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(SampleError, match="has changed since the source was listed"):
        ImageFolder((str(tmp_path),)).read(Ref("1.png", 3, 0, -1))


@pytest.mark.parametrize(
    ("content", "failure"), [(None, "vanished"), (b"", "empty"), (b"longer than before", "vanished")]
)
def test_files_that_change_are_noticed(content: bytes | None, failure: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "1.png").write_bytes(content)
    with pytest.raises(SampleError) as caught:
        ImageFolder((str(tmp_path),)).read(Ref("1.png", 3, 0, -1))
    assert caught.value.failure == failure


def test_a_hundred_thousand_files_in_one_folder(tmp_path: Path) -> None:
    root = touch(tmp_path / "s", "a/000000.png")
    touch(root, "a/050000.png")  # a file has at most 65,000 links
    for number in set(range(100_000)) - {0, 50_000}:
        os.link(f"{root}/a/{number // 50_000 * 50_000:06}.png", f"{root}/a/{number:06}.png")
    listing, refs = scan(root, tmp_path)
    assert (listing.found, refs[0], refs[-1]) == (100_000, ("a/000000.png", 0), ("a/099999.png", 0))
