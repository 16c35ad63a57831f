"""The LMDB file: one old format, no undefined bytes, growth without loss, sound to LMDB's own checker."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import lmdb
import numpy as np
import pytest
from lmdb import verify
from PIL import Image

import packer_reader
from packer import Job, Recipe, build
from packer.sinks import lmdb as sink
from packer.sinks.lmdb_pages import zero_undefined
from packer_reader.check import check_store
from packer_reader.errors import OutputError
from packer_reader.stores.lmdb import transaction
from tests.conftest import make_photos, make_serials
from tests.faults import tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module", params=["small", "large", "both"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores whose values are shared, single pages, and many pages."""
    root = tmp_path_factory.mktemp("lmdb")
    source = make_serials(root / "src", 40) if request.param != "large" else root / "src"
    if request.param != "small":
        random = np.random.default_rng(0)
        (source / "big").mkdir(parents=True, exist_ok=True)
        for number in range(20):
            side = 40 + 10 * number
            pixels = random.integers(0, 256, (side, side, 3), np.uint8)
            Image.fromarray(pixels).save(source / "big" / f"{number}.png")
    build(str(source), str(root / "o.lmdb"), Recipe(container="lmdb", unit=7), Job(workers=1))
    return root / "o.lmdb"


def test_lmdbs_own_checker_finds_it_sound(built: Path) -> None:
    verify.verify(str(built / "data.mdb"))  # type: ignore[no-untyped-call]


def test_nothing_undefined_is_left(built: Path, tmp_path: Path) -> None:
    data = (built / "data.mdb").read_bytes()
    copy = tmp_path / "data.mdb"
    copy.write_bytes(data)
    zero_undefined(copy)
    assert copy.read_bytes() == data


def test_undefined_bytes_do_not_matter_and_go(built: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data.mdb"
    data = bytearray((built / "data.mdb").read_bytes())
    page = 4096
    for start in range(2 * page, len(data), page):
        flags, lower, upper = struct.unpack_from("HHH", data, start + 10)
        number = struct.unpack_from("Q", data, start)[0]
        if number * page == start and flags in {1, 2} and 16 <= lower < upper <= page:
            data[start + lower : start + upper] = b"\xaa" * (upper - lower)
    copy.write_bytes(data)
    assert bytes(data) != (built / "data.mdb").read_bytes()
    zero_undefined(copy)
    assert copy.read_bytes() == (built / "data.mdb").read_bytes()


def test_the_file_is_not_larger_than_its_values_need(built: Path) -> None:
    with lmdb.open(str(built), readonly=True, lock=False) as env, env.begin() as txn:
        values = [len(value) for _, value in txn.cursor()]
        assert env.stat()["entries"] == packer_reader.open(built).manifest.records == len(values)
    pages = sum(-(-(size + 16) // 4096) for size in values)
    assert (built / "data.mdb").stat().st_size <= 4096 * (pages + 12)


def test_index_runs_may_end_inside_a_shared_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_serials(tmp_path / "src", 40)
    (source / "a" / "00003.png").write_bytes(b"no picture")
    monkeypatch.setattr(sink, "INDEX_RUN", 9)
    build(str(source), str(tmp_path / "o.lmdb"), Recipe(container="lmdb"), Job(workers=1))
    store = packer_reader.open(tmp_path / "o.lmdb")
    assert (store.manifest.shards, store.manifest.records) == (5, 1)
    assert list(check_store(tmp_path / "o.lmdb", full=True)) == []
    for number in range(39):
        assert store.encoded(number)["png"] == (source / store.source(number)).read_bytes()


def test_the_old_engine_is_forced(serials: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "packer", "build", str(serials), str(tmp_path / "o.lmdb"), "--quiet"]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"LMDB_DEFAULT_LIB_VERSION": "1"})
    magic, version = struct.unpack_from("II", (tmp_path / "o.lmdb" / "data.mdb").read_bytes(), 16)
    assert (magic, version) == (0xBEEFC0DE, 1)


@pytest.mark.parametrize("first_map", [1 << 16, 1 << 20])
def test_a_map_that_grows_loses_nothing(first_map: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    (tmp_path / "src").mkdir()
    for number in range(60):
        Image.fromarray(random.integers(0, 256, (96, 96, 3), np.uint8)).save(tmp_path / "src" / f"{number:03d}.png")
    monkeypatch.setattr(sink, "_FIRST_MAP", first_map)
    monkeypatch.setattr(sink.LmdbSink, "_reserve", lambda *_: None)
    build(str(tmp_path / "src"), str(tmp_path / "o.lmdb"), Recipe(container="lmdb"), Job(workers=1))
    store = packer_reader.open(tmp_path / "o.lmdb")
    for number in range(60):
        assert store.encoded(number)["png"] == (tmp_path / "src" / store.source(number)).read_bytes()


def test_a_process_opens_a_file_once(lmdb_store: Path) -> None:
    one, other = (packer_reader.open(lmdb_store) for _ in range(2))
    assert one[0]["label"] == other[0]["label"]
    assert transaction(lmdb_store, None) is transaction(lmdb_store, None)


def test_a_replaced_store_is_read_anew(tmp_path: Path) -> None:
    source: Any = make_serials(tmp_path / "src", 6)
    before: dict[str, bytes] = {}
    for seed in (0, 1):
        build(
            str(source), str(tmp_path / "o.lmdb"), Recipe(container="lmdb", seed=seed), Job(workers=1, overwrite=True)
        )
        store = packer_reader.open(tmp_path / "o.lmdb")
        assert sorted(store.source(n) for n in range(6)) == sorted(
            p.relative_to(source).as_posix() for p in source.rglob("*.png")
        )
        assert [int(store[n]["image"][0, 0, 0]) for n in range(6)] == [int(store.source(n)[2:7]) for n in range(6)]
        assert tree(tmp_path / "o.lmdb") != before
        before = tree(tmp_path / "o.lmdb")


@pytest.mark.parametrize(("side", "count", "limit"), [(48, 700, 1.06), (80, 300, 1.12)])
def test_the_file_is_little_larger_than_its_values(side: int, count: int, limit: float, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", count)
    recipe = Recipe(container="lmdb", resize=(side,), fit="crop", encode="raw")
    build(str(source), str(tmp_path / "o"), recipe, Job(workers=1, runner="serial"))
    with lmdb.open(str(tmp_path / "o"), readonly=True, lock=False) as env, env.begin() as txn:
        values = sum(len(value) for _, value in txn.cursor())
    assert (tmp_path / "o" / "data.mdb").stat().st_size <= limit * values


def test_values_that_are_missing_at_the_end_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_serials(tmp_path / "src", 40)
    take = sink.LmdbSink.take

    def lose(self: sink.LmdbSink, done: Any) -> Any:
        plans = take(self, done)
        if done.unit == 2:
            with self._env.begin(write=True) as txn, txn.cursor() as cursor:
                cursor.last()
                cursor.delete()
        return plans

    monkeypatch.setattr(sink.LmdbSink, "take", lose)
    with pytest.raises(OutputError, match=r"data.mdb has 3 of 4 values: run again with --no-resume"):
        build(str(source), str(tmp_path / "o"), Recipe(container="lmdb", unit=10), Job(workers=1))
    monkeypatch.undo()
    job = Job(workers=1, resume=False)
    assert build(str(source), str(tmp_path / "o"), Recipe(container="lmdb", unit=10), job).written == 40
