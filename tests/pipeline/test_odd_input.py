"""Pictures and folders that are odd but real: kept if they can be, skipped with a reason if not, never in the way."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import zlib
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pytest
from PIL import Image

import packer_reader
from packer import Job, Recipe, build
from packer.transforms.decode import decode
from packer_reader.check import check_store
from packer_reader.errors import SampleError
from tests.conftest import make_photos, make_serials, serial_image
from tests.pipeline.pictures import store_image

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


ONE = Job(workers=1)


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
