"""Promises about laying documents together: the store is the same, and nothing is read out of order any more."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from packer import Job, Recipe, build, gather, tokenized
from packer.job import Silent
from packer.plan import Plan
from packer.scan import scan
from packer.sources.refs import RefTable
from packer.sources.text import Documents
from packer.split import divide
from packer.tokens.window import with_unit
from packer_reader.errors import OutputError, SampleError, UsageError
from packer_reader.machine import seeks_are_slow
from tests.conftest import make_serials
from tests.faults import tree
from tests.text.documents import words, write

if TYPE_CHECKING:
    from pathlib import Path


SLOW = pytest.mark.slow


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Documents of several kinds, for which a bucket has room for some 30."""
    monkeypatch.setattr(gather, "_BUCKET", 10_000)
    monkeypatch.setattr(gather, "_BUFFERS", 100_000)
    folder = tmp_path / "src"
    write(folder / "a.jsonl", words(300, seed=1))
    write(folder / "b.jsonl.gz", words(200, seed=2))
    write(folder / "c.csv", words(100, seed=3))
    with (folder / "a.jsonl").open("ab") as file:
        file.write(b'{"text": 5}\nno JSON\n{"text": "' + b"long " * 2000 + b'"}\n')
    (folder / "d.txt").write_text("a document of its own")
    return folder


@pytest.mark.parametrize("options", [{}, {"val": 0.3}, {"shuffle": False}, {"container": "lmdb", "seed": 5}])
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=SLOW)])
def test_the_store_is_the_same(options: dict[str, Any], workers: int, source: Path, tmp_path: Path) -> None:
    recipe = Recipe(text=tokenized(pack="bestfit", seq_len=64, max_document=9000), **options)
    for name, together in (("o", False), ("p", True)):
        build(str(source), str(tmp_path / name), recipe, Job(workers=workers, gather=together))
    assert tree(tmp_path / "o") == tree(tmp_path / "p")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o", "p", "src"]


@pytest.mark.parametrize("val", [None, 0.3])
def test_units_lie_side_by_side(val: float | None, source: Path, tmp_path: Path) -> None:
    text = tokenized()
    job, documents = Job(), Documents((str(source),), text)
    listing = scan(documents, tmp_path / "refs", job)
    documents = documents.spooled_at(tmp_path / "refs" / "spool.bin")
    recipe = with_unit(Recipe(text=text, val=val), listing.bytes, listing.found)
    splits = divide(recipe, listing, RefTable(tmp_path / "refs"))
    before = [documents.document(ref) for ref in _sound(RefTable(tmp_path / "refs"), documents)]
    documents = gather.gather(job, documents, tmp_path / "refs", splits, recipe)
    table = RefTable(tmp_path / "refs")
    assert [documents.document(ref) for ref in _sound(table, documents)] == before
    end = 0
    for split in splits:
        plan = Plan(split.count, recipe.seed, recipe.unit)
        for unit in range(plan.units):
            refs = plan.refs(unit)
            places = refs if split.members is None else split.members[refs].astype(np.int64)
            for ref in table.some(places):
                assert ref.offset == end
                end += ref.size
    assert end == listing.bytes == (tmp_path / "refs" / "spool.bin").stat().st_size


def _sound(table: RefTable, documents: Documents) -> list[Any]:
    """Refs of documents that can be read."""
    found = []
    for number in range(len(table)):
        with suppress(SampleError):  # the bad ones of the fixture
            documents.document(table[number])
            found.append(table[number])
    return found


def test_files_that_change_before_they_are_laid_together_are_named(source: Path, tmp_path: Path) -> None:
    class Meddling(Silent):
        def begin(self, what: str, _: int) -> None:
            if what == "gathering":
                (source / "d.txt").unlink()
                os.utime(source / "a.jsonl", ns=(1, 1))

    job = Job(workers=1, gather=True, watcher=Meddling())
    report = build(str(source), str(tmp_path / "o"), Recipe(text=tokenized()), job)
    assert report.errors == {"vanished": 304}
    assert report.written == 300


def test_what_does_not_fit_is_refused_before_it_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = os.statvfs(tmp_path)
    full = os.statvfs_result((*room[:3], 0, 0, *room[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(OutputError, match="are needed to lay the documents together .* or give --no-gather"):
        build(str(source), str(tmp_path / "o"), Recipe(text=tokenized()), Job(workers=1, gather=True))


@pytest.mark.parametrize("slow", [False, True])
def test_it_happens_on_slow_disks_where_memory_is_short(
    slow: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "seeks_are_slow", lambda _: slow)
    documents, recipe = Documents((str(source),), tokenized()), Recipe(text=tokenized())

    def gathers(size: int, recipe: Recipe = recipe, **options: Any) -> bool:
        return gather.gathers(Job(**options), documents, tmp_path, size, recipe)

    assert gathers(1 << 60) == slow
    assert not gathers(1 << 20)
    assert gathers(1, gather=True)
    assert not gathers(1 << 60, gather=False)
    assert not gathers(1 << 60, replace(recipe, shuffle=False), gather=True)  # read in their order anyway


def test_buckets_are_as_large_as_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one split has short documents and another one long ones."""
    monkeypatch.setattr(gather, "_BUCKET", 20_000)
    write(tmp_path / "src" / "train.jsonl", ["short"] * 4000)
    write(tmp_path / "src" / "val.jsonl", [f"{n} " + "long " * 400 for n in range(400)])
    sizes: list[int] = []

    def ended(self: Any) -> Any:
        for content in plain(self):
            sizes.append(len(content))
            yield content

    plain = gather._Buckets.ended
    monkeypatch.setattr(gather._Buckets, "ended", ended)
    build(str(tmp_path / "src"), str(tmp_path / "o"), Recipe(text=tokenized()), Job(workers=1, gather=True))
    heads = 24 * 4400
    assert sum(sizes) > 800_000
    assert max(sizes) < 3 * 20_000 + heads


def test_images_cannot_be_gathered(tmp_path: Path) -> None:
    make_serials(tmp_path / "img", 3)
    with pytest.raises(UsageError, match="--gather is about text, and the source is imagefolder"):
        build(str(tmp_path / "img"), str(tmp_path / "o"), Recipe(), Job(workers=1, gather=True))


def test_names_with_colons_keep_their_kind(tmp_path: Path) -> None:
    (tmp_path / "src" / "a.jsonl:9").mkdir(parents=True)
    for name in ("plain.jsonl:x.txt", "a.jsonl:9/b.txt", "c:12.txt"):
        (tmp_path / "src" / name).write_text(f"the text of {name}")
    for name, together in (("o", False), ("p", True)):
        report = build(str(tmp_path / "src"), str(tmp_path / name), Recipe(text=tokenized()), Job(gather=together))
        assert report.written == 3
    assert tree(tmp_path / "o") == tree(tmp_path / "p")


def test_what_was_unpacked_is_never_left_behind(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure to read it would leave refs that lead into the file that is put in its place."""
    reads, plain = [0], os.pread

    def failing(file: int, size: int, place: int) -> bytes:
        reads[0] += os.readlink(f"/proc/self/fd/{file}").endswith("spool.bin")
        if reads[0] == 100:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(file, size, place)

    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(OutputError, match="Input/output error"):
        build(str(source), str(tmp_path / "o"), Recipe(text=tokenized()), Job(workers=1, gather=True))
    monkeypatch.setattr(os, "pread", plain)
    build(str(source), str(tmp_path / "o"), Recipe(text=tokenized()), Job(workers=1, gather=True))
    build(str(source), str(tmp_path / "p"), Recipe(text=tokenized()), Job(workers=1))
    assert tree(tmp_path / "o") == tree(tmp_path / "p")


@pytest.mark.parametrize("again", [None, pytest.param(True, marks=SLOW), pytest.param(False, marks=SLOW)])
@pytest.mark.parametrize("at", ["gathering", "converting"])
def test_a_build_that_was_killed_goes_on(at: str, again: bool | None, source: Path, tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(
        "import os, sys\n"
        "from packer import Job, Recipe, build, gather, tokenized\n"
        "from packer.job import Silent\n"
        "gather._BUCKET = 10_000\n"
        "class Killing(Silent):\n"
        "    def begin(self, what, total):\n"
        "        self.what = what\n"
        "    def advance(self, *_):\n"
        f"        if self.what == {at!r}:\n"
        "            os.kill(os.getpid(), 9)\n"
        f"build({str(source)!r}, 'o', Recipe(text=tokenized()), Job(runner='serial', gather=True, watcher=Killing()))\n"
    )
    assert subprocess.run([sys.executable, "killed.py"], cwd=tmp_path, check=False).returncode == -9
    assert (tmp_path / ".o.packing").exists()
    build(str(source), str(tmp_path / "o"), Recipe(text=tokenized()), Job(workers=1, gather=again))
    build(str(source), str(tmp_path / "p"), Recipe(text=tokenized()), Job(workers=1))
    assert tree(tmp_path / "o") == tree(tmp_path / "p")
    assert not (tmp_path / ".o.packing").exists()


@pytest.mark.parametrize(
    ("mounted", "spins", "slow"),
    [
        ("ext4 /dev/sda rw", "0", False),
        ("ext4 /dev/sda rw", "1", True),
        ("nfs4 server:/data rw", None, True),
        ("fuse.sshfs server: rw", None, True),
        ("fuse.ext4 /dev/sdb rw", None, False),
        ("tmpfs tmpfs rw", None, False),
    ],
)
def test_slow_disks_are_known_by_what_the_system_says(
    mounted: str, spins: str | None, slow: bool, tmp_path: Path
) -> None:
    device = os.stat(tmp_path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    (tmp_path / "mountinfo").write_text(
        f"9 1 9:9 / /x rw - nfs other:/ rw\n27 1 {number} / / rw shared:1 - {mounted}\n"
    )
    disk = tmp_path / "devices" / "disk"
    (disk / "part").mkdir(parents=True)
    (tmp_path / "devices" / number).symlink_to(disk / "part")
    if spins is not None:
        (disk / "queue").mkdir()
        (disk / "queue" / "rotational").write_text(f"{spins}\n")
    assert seeks_are_slow(tmp_path, tmp_path / "mountinfo", tmp_path / "devices") == slow
