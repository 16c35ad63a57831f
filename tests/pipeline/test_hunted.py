"""Faults that were hunted down once: each stays a test."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pytest
from PIL import Image

import packer_reader
from packer import Job, Recipe, build
from packer.output import publish as publishing
from packer.output.staging import Staging
from packer.sources.imagefolder import ImageFolder
from packer.transforms.decode import decode
from packer.transforms.image import store_image
from packer_reader.check import check_store
from packer_reader.errors import OutputError, SampleError, SourceError, UsageError, WorkerError
from tests.conftest import make_photos, make_serials, serial_image
from tests.faults import tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from packer.sample import RawSample, Ref

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


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, raw: bytes, depth: int = 8, color: int = 2) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


@pytest.fixture
def plain_png() -> bytes:
    buffer = io.BytesIO()
    serial_image(7).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "hurt",
    [
        lambda data: data[:-12],
        lambda data: data[:-3],
        lambda data: data[:33] + chunk(b"QQQQ", b"critical") + data[33:],
    ],
)
def test_only_what_the_reader_decodes_is_kept_as_it_is(hurt: Callable[[bytes], bytes], plain_png: bytes) -> None:
    data = hurt(plain_png)
    try:
        stored = store_image(data, "png", Recipe())
    except SampleError as refused:
        assert refused.failure in {"truncated", "corrupt"}  # noqa: PT017 - either a refusal, or readable bytes
        return
    decoded = cv2.imdecode(np.frombuffer(stored.data, np.uint8), cv2.IMREAD_COLOR_RGB)
    assert decoded is not None
    assert (decoded == np.asarray(serial_image(7))).all()


def test_sixteen_bit_colour_is_scaled_too() -> None:
    deep = np.array([[[0, 255, 65535], [257, 514, 128]]], np.uint16)
    data = png(2, 1, b"\0" + deep.astype(">u2").tobytes(), 16)
    picture = decode(data, gray=False, max_pixels=100)
    assert picture.pixels.tolist() == [[[0, 1, 255], [1, 2, 0]]]
    assert (picture.codec, picture.plain) == ("png16", False)
    with_alpha = np.dstack([deep, np.zeros((1, 2), np.uint16)])
    data = png(2, 1, b"\0" + with_alpha.astype(">u2").tobytes(), 16, 6)
    assert decode(data, gray=False, max_pixels=100).pixels.tolist() == [[[0, 1, 255], [1, 2, 0]]]


def test_orientation_is_found_behind_large_segments() -> None:
    pixels = np.zeros((30, 40, 3), np.uint8)
    pixels[:15] = 255
    tiff = b"II*\0" + struct.pack("<IHHHIHHI", 8, 1, 274, 3, 1, 6, 0, 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95, exif=b"Exif\0\0" + tiff)
    data = buffer.getvalue()
    segment = b"\xff\xed" + struct.pack(">H", 60_002) + bytes(60_000)
    late = data[:2] + segment * 2 + data[2:]
    stored = store_image(late, "jpg", Recipe())
    assert stored.size == (40, 30)
    assert Image.open(io.BytesIO(stored.data)).getexif().get(274) is None


def test_stray_bytes_behind_the_last_pixel_lose_nothing() -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.full((32, 32, 3), 90, np.uint8)).save(buffer, "JPEG", quality=95)
    data = buffer.getvalue()
    stored = store_image(data[:-2] + bytes(200) + data[-2:], "jpg", Recipe())
    assert abs(int(decode(stored.data, gray=False, max_pixels=10**6).pixels.mean()) - 90) <= 2


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((1, 1000), {"resize": (256,)}),
        ((1, 60_000), {"resize": (256,), "fit": "crop"}),
        ((1, 70_000), {"encode": "jpg"}),
        ((20_000, 1), {"encode": "webp"}),
    ],
)
def test_one_odd_picture_does_not_stop_the_others(
    size: tuple[int, int], options: dict[str, Any], tmp_path: Path
) -> None:
    source = make_serials(tmp_path / "src", 5)
    row = b"\0" + bytes(3 * size[0])
    (source / "a" / "odd.png").write_bytes(png(*size, row * size[1]))
    report = build(str(source), str(tmp_path / "o"), Recipe(**options, max_pixels=10_000_000), ONE)
    assert (report.written, report.errors) == (5, {"too-large": 1})
    assert list(check_store(tmp_path / "o", full=True)) == []


def test_a_file_too_large_to_read_is_skipped(tmp_path: Path) -> None:
    source = make_serials(tmp_path / "src", 3)
    with (source / "a" / "sparse.jpg").open("wb") as file:
        file.truncate(1 << 42)
    assert build(str(source), str(tmp_path / "o"), Recipe(), ONE).errors == {"too-large": 1}


def test_links_up_beyond_the_source_are_not_followed(tmp_path: Path) -> None:
    source = make_serials(tmp_path / "all" / "src", 6)
    make_serials(tmp_path / "all" / "other", 6)
    (source / "a" / "up").symlink_to("../..")
    assert build(str(source), str(tmp_path / "o"), Recipe(), ONE).found == 6


def test_folders_may_be_nested_deeply(tmp_path: Path) -> None:
    source = make_serials(tmp_path / "src", 3)
    where = os.getcwd()
    try:
        os.chdir(source / "a")
        for _ in range(1100):
            os.mkdir("d")
            os.chdir("d")
        os.chdir(where)
        assert build(str(source), str(tmp_path / "o"), Recipe(), ONE).written == 3
    finally:
        os.chdir(where)
        subprocess.run(["rm", "-rf", str(source)], check=True)  # pytest would recurse


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


@pytest.mark.parametrize("encode", ["png", "raw"])
def test_every_change_of_codec_is_counted(encode: Any, tmp_path: Path) -> None:
    report = build(str(make_photos(tmp_path / "src", 4)), str(tmp_path / "o"), Recipe(encode=encode), ONE)
    assert report.reencoded == {f"jpg>{'npy' if encode == 'raw' else encode}": 4}


def test_other_extensions_are_said(tmp_path: Path, run: Callable[..., Any]) -> None:
    source = make_serials(tmp_path / "src", 4)
    for name in ("x.heic", "y.JPG.bak", "z.heic"):
        (source / "a" / name).touch()
    result = run("build", source, tmp_path / "o", "--workers", "1")
    assert "note: 3 files were left out for their extension: 2 .heic, 1 .bak" in result.stderr
    assert packer_reader.open(tmp_path / "o").manifest.source["ignored"] == {".bak": 1, ".heic": 2}


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


def test_a_pool_ends_nobody_elses_children() -> None:
    program = (
        "import multiprocessing as mp, time\n"
        "from packer.runners.processes import ProcessRunner\n"
        "if __name__ == '__main__':\n"
        "    other = mp.get_context('spawn').Process(target=time.sleep, args=(60,)); other.start()\n"
        "    pool = ProcessRunner(1); pool.submit(int, 3).result(); pool.kill()\n"
        "    print(other.is_alive()); other.kill()\n"
    )
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"packer_pool_{os.getpid()}.py"
    path.write_text(program)
    try:
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    finally:
        path.unlink()
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize("reached", ["lock", "refs/rows.bin", "work/all", "work/all/units", "work/all/journal.jsonl"])
def test_ctrl_c_to_the_whole_group_is_quiet(reached: str, tmp_path: Path) -> None:
    source = make_photos(tmp_path / "src", 900)
    process = subprocess.Popen(
        [sys.executable, "-m", "packer", "build", str(source), str(tmp_path / "o"), "--workers", "2"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while process.poll() is None and not (tmp_path / ".o.packing" / reached).exists():
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGINT)
    stderr = process.communicate(timeout=10)[1]
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "interrupted: run the same command again to go on"
    assert "Traceback" not in stderr


class _Deadly(ImageFolder):
    """A source with a sample that kills who reads it, as a crash in a codec would."""

    def read(self, ref: Ref) -> RawSample:
        if ref.name.endswith("00007.png"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(ref)


def test_a_worker_that_dies_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_serials(tmp_path / "src", 40)
    monkeypatch.setattr("packer.convert.detect", lambda path, _: _Deadly(path))
    with pytest.raises(WorkerError, match="a worker process died .*lower --workers"):
        build(str(source), str(tmp_path / "o"), Recipe(unit=5), Job(workers=2))
    assert not (tmp_path / "o").exists()
    monkeypatch.undo()
    assert build(str(source), str(tmp_path / "o"), Recipe(unit=5), Job(workers=2)).written == 40


@pytest.mark.parametrize(
    "arguments",
    [
        ("--resize", "²"),
        ("--resize", "1" * 5000),
        ("--max-errors", "inf"),
        ("--max-errors", "nan"),
        ("--val", "0.5", "--group-by", "a{99999999999999}"),
        ("--size", "9" * 400),
        ("--size", ".5"),
    ],
)
def test_odd_option_values_are_usage_errors(arguments: tuple[str, ...], run: Callable[..., Any], serials: Path) -> None:
    result = run("build", serials, "never", *arguments, exit_code=2)
    assert result.stderr.startswith("error: --")


def test_names_that_are_too_long_are_one_line(run: Callable[..., Any], serials: Path) -> None:
    for arguments in (("build", "n" * 300, "o"), ("build", serials, "n" * 300), ("inspect", "n" * 300)):
        result = run(*arguments, exit_code=4 if arguments[0] == "inspect" else 1)
        assert "File name too long" in result.stderr


def test_a_full_stdout_is_one_line(tar_store: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m packer inspect {tar_store} > /dev/full",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode != 0


def test_a_huge_manifest_is_not_read(tmp_path: Path, run: Callable[..., Any]) -> None:
    (tmp_path / "o").mkdir()
    with (tmp_path / "o" / "manifest.json").open("wb") as file:
        file.truncate(1 << 42)
    assert "the limit is" in run("inspect", tmp_path / "o", exit_code=4).stderr
    assert "the limit is" in run("verify", tmp_path / "o", exit_code=4).stdout


@pytest.mark.parametrize("stray", ["folder", "link"])
def test_stray_folders_and_links_are_found(stray: str, serials: Path, tmp_path: Path) -> None:
    build(str(serials), str(tmp_path / "o"), Recipe(), ONE)
    path = tmp_path / "o" / "stray"
    path.mkdir() if stray == "folder" else path.symlink_to(tmp_path)
    assert [finding.file for finding in check_store(tmp_path / "o")] == ["stray"]


@pytest.mark.parametrize("change", [{"bytes": 5}, {"records": 5}, {"shuffled": False}])
def test_wrong_sums_in_a_manifest_are_found(change: dict[str, Any], store: Path, tmp_path: Path) -> None:
    import hashlib
    import shutil

    from packer_reader.format.columns import canonical_json

    copy = shutil.copytree(store, tmp_path / "copy")
    document = json.loads((copy / "manifest.json").read_text()) | change
    document.pop("manifest_sha256")
    document["manifest_sha256"] = hashlib.sha256(canonical_json(document)).hexdigest()
    (copy / "manifest.json").write_text(json.dumps(document))
    assert {finding.file for finding in check_store(copy)} == {"manifest.json"}
