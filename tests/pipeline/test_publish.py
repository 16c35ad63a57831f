"""Publication and staging: whatever happens around them, one whole store, and nobody else's files touched."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

import packer_reader
from packer import Job, Recipe, build
from packer.images import convert_images
from packer.output import publish as publishing
from packer.output.staging import Staging
from packer_reader.check import check_store
from packer_reader.errors import OutputError, SampleError, SourceError, UsageError
from tests.conftest import make_photos, make_serials
from tests.faults import tree

if TYPE_CHECKING:
    from pathlib import Path

    from packer.unit import SplitJob, UnitDone


ONE = Job(workers=1)
AGAIN = Job(workers=1, overwrite=True)


def test_a_second_build_in_one_process_has_refs_of_its_own(tmp_path: Path) -> None:
    source = make_serials(tmp_path / "src", 30)
    build(str(source), str(tmp_path / "o"), Recipe(), ONE)
    (source / "A0").mkdir()
    build(str(source), str(tmp_path / "o"), Recipe(), AGAIN)
    store = packer_reader.open(tmp_path / "o")
    assert store.classes == ("A0", "a", "b", "c")
    assert all(store.classes[store[n]["label"]] == store.source(n)[0] for n in range(30))
    other = make_serials(tmp_path / "other", 9, "xy")
    assert build(str(other), str(tmp_path / "o"), Recipe(), AGAIN).written == 9


def test_what_appears_at_the_target_meanwhile_is_kept(
    serials: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = Staging.make_ready

    def late(self: Staging) -> Path:
        (tmp_path / "o").mkdir()
        (tmp_path / "o" / "thesis.txt").write_text("x")
        return ready(self)

    monkeypatch.setattr(Staging, "make_ready", late)
    with pytest.raises(OutputError, match="while publishing|exists already"):
        build(str(serials), str(tmp_path / "o"), Recipe(), ONE)
    assert tree(tmp_path / "o") == {"thesis.txt": b"x"}
    (tmp_path / "o" / "thesis.txt").unlink()
    monkeypatch.undo()
    build(str(serials), str(tmp_path / "o"), Recipe(), ONE)
    assert list(check_store(tmp_path / "o", full=True)) == []


@pytest.mark.parametrize("name", ["o", "o.lmdb"])
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_around_the_exchange_leaves_one_whole_store(
    after: bool, name: str, serials: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / name
    container: Any = "lmdb" if out.suffix else "tar"
    old, new = (Recipe(container=container, seed=seed, shard_bytes=size) for seed, size in ((0, 10_000), (1, 90_000)))
    build(str(serials), str(out), old, ONE)
    before = tree(out)
    exchange = publishing._exchange

    class Killed(BaseException):
        pass

    def crash(one: Path, other: Path) -> None:
        if after:
            exchange(one, other)
        os.rename(tmp_path / f".{name}.packing", tmp_path / "kept")  # what a SIGKILL leaves: nothing cleans up
        raise Killed

    monkeypatch.setattr(publishing, "_exchange", crash)
    with pytest.raises(Killed):
        build(str(serials), str(out), new, AGAIN)
    monkeypatch.undo()
    for leftover in tmp_path.glob(f".{name}.packing*"):
        leftover.rmdir()
    os.rename(tmp_path / "kept", tmp_path / f".{name}.packing")
    (tmp_path / f".{name}.packing" / "lock").unlink(missing_ok=True)
    assert (tree(out) == before) == (not after)
    assert list(check_store(out, full=True)) == []
    build(str(serials), str(out), new, AGAIN)
    build(str(serials), str(tmp_path / f"fresh{out.suffix}"), new, ONE)
    assert tree(out) == tree(tmp_path / f"fresh{out.suffix}")
    assert not list(tmp_path.glob(".*.packing*"))


def interrupted(source: Path, out: Path) -> Path:
    """Staging with a finished unit and no store."""
    broken = next(source.rglob("*.png"))
    data, times = broken.read_bytes(), broken.stat()
    broken.write_bytes(b"x" * len(data))
    os.utime(broken, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(SampleError):
        build(str(source), str(out), Recipe(unit=5), Job(workers=1, stop_on_error=True))
    staging = out.parent / f".{out.name}.packing"
    assert staging.exists()
    return staging


def test_a_slip_does_not_take_work_away(tmp_path: Path) -> None:
    source = make_serials(tmp_path / "src", 30)
    staging = interrupted(source, tmp_path / "o")
    with pytest.raises(UsageError, match="--runner"):
        build(str(source), str(tmp_path / "o"), Recipe(unit=5), Job(workers=1, runner="ray"))
    source.rename(tmp_path / "away")
    source.mkdir()
    with pytest.raises(SourceError, match="no images"):
        build(str(source), str(tmp_path / "o"), Recipe(unit=5), ONE)
    assert staging.exists()


def test_on_error_stop_stops_again(tmp_path: Path) -> None:
    source = make_serials(tmp_path / "src", 30)
    interrupted(source, tmp_path / "o")
    for _ in range(2):
        with pytest.raises(SampleError, match="--no-resume"):
            build(str(source), str(tmp_path / "o"), Recipe(unit=5), Job(workers=1, stop_on_error=True))
    (source / "loose.png").touch()
    with pytest.raises(SourceError, match="'loose.png': the file is in no class folder: repair or remove it"):
        build(str(source), str(tmp_path / "o2"), Recipe(unit=5), Job(workers=1, stop_on_error=True))


def test_work_of_an_unknown_job_is_not_used(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 30)
    staging = tmp_path / ".o.packing"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packer.convert.publish", lambda *_, **__: (_ for _ in ()).throw(OutputError("stopped")))
        with pytest.raises(OutputError):
            build(str(source), str(tmp_path / "o"), Recipe(resize=(16,)), ONE)
    (staging / "job.json").write_text("")
    build(str(source), str(tmp_path / "o"), Recipe(resize=(32,)), ONE)
    assert min(packer_reader.open(tmp_path / "o")[0]["image"].shape[:2]) == 32


def test_what_a_build_began_and_never_finished_is_not_published(serials: Path, tmp_path: Path) -> None:
    store = tmp_path / ".o.packing" / "store"
    store.mkdir(parents=True)
    (store / "data.mdb").write_bytes(b"of an LMDB build that was killed at once")
    build(str(serials), str(tmp_path / "o"), Recipe(), ONE)
    assert list(check_store(tmp_path / "o", full=True)) == []


def test_a_link_as_target_is_followed(serials: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for seed in (0, 1):
        build(str(serials), str(tmp_path / "link"), Recipe(seed=seed), AGAIN)
        assert (tmp_path / "link").is_symlink()
        assert len(packer_reader.open(tmp_path / "real")) == 60
    assert not list(tmp_path.glob(".*"))


def test_unrelated_stores_in_a_folder_are_not_replaced(serials: Path, tmp_path: Path) -> None:
    for name, seed in (("train", 0), ("val", 1)):
        build(str(serials), str(tmp_path / "stores" / name), Recipe(seed=seed), ONE)
    with pytest.raises(OutputError, match="stores of several builds|store of another build"):
        build(str(serials), str(tmp_path / "stores"), Recipe(), AGAIN)


def test_an_empty_lock_is_stale_soon(serials: Path, tmp_path: Path) -> None:
    (tmp_path / ".o.packing").mkdir()
    (tmp_path / ".o.packing" / "lock").touch()
    os.utime(tmp_path / ".o.packing" / "lock", (1, 1))
    assert build(str(serials), str(tmp_path / "o"), Recipe(), ONE).written == 60


def test_a_build_killed_while_finishing_converts_nothing_again(
    serials: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packer.convert.publish", lambda *_, **__: (_ for _ in ()).throw(OutputError("stopped")))
    with pytest.raises(OutputError, match="stopped"):
        build(str(serials), str(tmp_path / "o"), Recipe(unit=7, shard_bytes=30_000), ONE)
    monkeypatch.undo()
    monkeypatch.setattr("packer.drive.convert", lambda *call, **_: pytest.fail(f"unit {call[2]} was converted again"))
    assert build(str(serials), str(tmp_path / "o"), Recipe(unit=7, shard_bytes=30_000), ONE).written == 60
    assert list(check_store(tmp_path / "o", full=True)) == []


def test_a_fragment_cut_before_its_shard_is_made_is_an_error(
    serials: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(
        jobs: list[SplitJob], wanted: list[int], unit: int, crashed: frozenset[int], *, careful: bool
    ) -> list[UnitDone]:
        assert not careful
        done = convert_images(jobs, wanted, unit, crashed)
        os.truncate(jobs[0].data_path(unit), done[0].data[0] // 2)
        return done

    monkeypatch.setattr("packer.drive.convert", cut)
    with pytest.raises(OutputError, match="a fragment was cut short while writing"):
        build(str(serials), str(tmp_path / "o"), Recipe(), ONE)
    monkeypatch.undo()
    build(str(serials), str(tmp_path / "o"), Recipe(), ONE)
    assert list(check_store(tmp_path / "o", full=True)) == []
