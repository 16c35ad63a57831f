"""Promises of decoding in part: what a crop gives is what the whole picture would have given."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from packer_reader.crops import CenterCrop, Cut, Draw, RandomResizedCrop, Resize
from packer_reader.decode import decode_parts
from packer_reader.errors import DamageError
from packer_reader.format.fields import FieldSpec
from packer_reader.jpeg import decode_cuts, read_frame

if TYPE_CHECKING:
    from packer_reader.crops import Crop

SAMPLINGS = ("444", "422", "420", "440", "411", "Gray")


def picture(height: int, width: int) -> np.ndarray[Any, Any]:
    """A scene of smooth and sharp parts in many colours."""
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [np.sin(rows / a) * np.cos(columns / b) for a, b in ((3.1, 5.3), (9.7, 4.1), (17.0, 23.0))]
    pixels = np.stack(waves, axis=2) * 90 + 120
    pixels[(rows // 13 + columns // 17) % 5 == 0] += 40
    return pixels.clip(0, 255).astype(np.uint8)


def encoded(height: int, width: int, sampling: str) -> bytes:
    pixels = picture(height, width)
    if sampling == "Gray":
        return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[..., :1]), 90, "GRAY", "Gray"))
    return bytes(simplejpeg.encode_jpeg(pixels, 90, "RGB", sampling))


def by_pillow(height: int, width: int, **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(picture(height, width)).save(stream, "JPEG", quality=90, **options)
    return stream.getvalue()


def field(channels: int) -> FieldSpec:
    return FieldSpec("image", "image", "jpg", "jpg", "uint8", (None, None, channels), (4096, 4096, channels))


def parts(data: bytes, cut: Cut, channels: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A cut's result by decoding in part, and out of the whole picture."""
    whole = simplejpeg.decode_jpeg(data, "GRAY" if channels == 1 else "RGB")
    return decode_parts(field(channels), data, lambda *_: [cut])[0].resized(), cut.of(whole)


def psnr(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    error = float(np.mean((one.astype(np.float64) - other) ** 2))
    return 99.0 if error == 0 else 10 * math.log10(255**2 / error)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_part_has_the_pixels_of_the_whole(data: st.DataObject) -> None:
    height, width = data.draw(st.integers(1, 130), "height"), data.draw(st.integers(1, 130), "width")
    top, left = data.draw(st.integers(0, height - 1), "top"), data.draw(st.integers(0, width - 1), "left")
    rows, columns = data.draw(st.integers(1, height - top), "rows"), data.draw(st.integers(1, width - left), "columns")
    channels = data.draw(st.sampled_from([1, 3]), "channels")
    jpeg = encoded(height, width, data.draw(st.sampled_from(SAMPLINGS), "sampling"))
    size = data.draw(
        st.sampled_from([(rows, columns), (rows // 2 + 1, columns // 2 + 1), (rows + 9, columns + 1)]), "size"
    )
    part, whole = parts(jpeg, Cut(top, left, rows, columns, size), channels)
    assert part.shape == (*size, channels)
    assert (part == whole).all()


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"progressive": True},
        {"restart_marker_rows": 1},
        {"restart_marker_rows": 2},
        *({"restart_marker_blocks": blocks} for blocks in (1, 2, 3, 4, 5)),
    ],
)
def test_a_part_of_a_progressive_or_restarted_jpeg_is_exact(options: dict[str, Any], subsampling: int) -> None:
    tiles = 0
    for height, width in ((120, 96), (99, 128), (33, 61)):
        jpeg = by_pillow(height, width, subsampling=subsampling, **options)
        tiles += read_frame(jpeg).tile is not None
        for sample in range(60):
            cut = RandomResizedCrop(60, scale=(0.02, 0.3)).cut(height, width, Draw(0, 0, sample))
            part, whole = parts(jpeg, cut, 3)
            assert (part == whole).all()
    assert tiles or options.get("restart_marker_blocks") not in {1, 2, 4}


@pytest.mark.parametrize("sampling", ["444", "422", "420", "440", "Gray"])
@pytest.mark.parametrize("divisor", [1, 2, 4, 8])
def test_tiles_have_the_pixels_of_the_whole_at_any_fraction(divisor: int, sampling: str) -> None:
    gray, random = sampling == "Gray", np.random.default_rng(divisor)
    options = [cv2.IMWRITE_JPEG_RST_INTERVAL, 2]
    if not gray:
        factors = getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{sampling}")
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factors]
    jpeg = cv2.imencode(".jpg", picture(160, 192)[..., : 1 if gray else 3], options)[1].tobytes()
    frame = read_frame(jpeg)
    assert frame.tile is not None
    for _ in range(200):
        height, width = (int(side) for side in random.integers(divisor * 2, (160, 192)))
        top, left = (int(random.integers(0, 1 + free)) for free in (160 - height, 192 - width))
        cut = Cut(top, left, height, width, (height // divisor, width // divisor)).aligned()
        found = []
        for shown in (frame, replace(frame, tile=None, simple=False)):
            ((pixels, extent),) = decode_cuts(jpeg, shown, [cut], gray=gray)
            found.append((pixels.copy(), extent))
        assert found[0][1] == found[1][1]
        assert (found[0][0] == found[1][0]).all()


def test_bytes_between_tiles_are_damage() -> None:
    jpeg = by_pillow(64, 64, restart_marker_blocks=1)
    place = jpeg.index(b"\xff\xd1")
    for cut in (Cut(0, 0, 64, 64, (64, 64)), Cut(0, 16, 20, 16, (20, 16))):
        with pytest.raises(DamageError, match="does not decode"):
            decode_parts(field(3), jpeg[:place] + bytes(range(1, 13)) + jpeg[place:], lambda *_, cut=cut: [cut])


def test_tiles_that_are_missing_are_damage() -> None:
    jpeg = bytearray(by_pillow(64, 64, restart_marker_blocks=1))
    jpeg[jpeg.index(b"\xff\xd1") : jpeg.index(b"\xff\xd2")] = b""
    with pytest.raises(DamageError, match="does not decode"):
        decode_parts(field(3), bytes(jpeg), lambda *_: [Cut(0, 0, 64, 64, (64, 64))])


@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}, {"restart_marker_blocks": 1}])
def test_a_second_picture_behind_the_first_is_none_of_it(options: dict[str, Any]) -> None:
    jpeg = by_pillow(64, 64, **options) + by_pillow(32, 32, restart_marker_rows=1)
    part, whole = parts(jpeg, Cut(8, 8, 20, 20, (20, 20)), 3)
    assert (part == whole).all()


@pytest.mark.parametrize("options", [{}, {"restart_marker_blocks": 1}, {"progressive": True}])
def test_a_picture_that_ends_early_is_damage(options: dict[str, Any]) -> None:
    jpeg = by_pillow(128, 128, **options)
    for share in (0.3, 0.5, 0.7):
        with pytest.raises(DamageError):
            decode_parts(field(3), jpeg[: int(len(jpeg) * share)], lambda *_: [Cut(90, 90, 30, 30, (30, 30))])


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damaged_headers_are_damage(data: st.DataObject) -> None:
    jpeg = bytearray(by_pillow(40, 48, restart_marker_blocks=1))
    for _ in range(data.draw(st.integers(1, 3))):
        jpeg[data.draw(st.integers(0, read_frame(by_pillow(40, 48, restart_marker_blocks=1)).data))] = data.draw(
            st.integers(0, 255)
        )
    for crop in (RandomResizedCrop(9), Resize(20), CenterCrop(30, ratio=0.5)):
        try:
            decode_parts(field(3), bytes(jpeg), lambda *size, crop=crop: [crop.cut(*size, Draw(0, 0, 1))])[0].resized()
        except DamageError:
            continue


def test_tiny_pictures_are_decoded_in_full() -> None:
    for side in (3, 4, 7):
        part, whole = parts(encoded(side, side, "444"), Cut(0, 0, side, side, (1, 1)), 3)
        assert (part == whole).all()


@pytest.mark.parametrize("sampling", ["444", "420", "Gray", "tiles"])
@pytest.mark.parametrize("crop", [RandomResizedCrop(24, scale=(0.3, 1)), CenterCrop(40, ratio=0.875), Resize((31, 37))])
def test_a_part_decoded_at_a_fraction_does_not_shift(crop: Crop, sampling: str) -> None:
    channels = 1 if sampling == "Gray" else 3
    jpeg = by_pillow(331, 277, restart_marker_blocks=3) if sampling == "tiles" else encoded(331, 277, sampling)
    divisors = set()
    for sample in range(40):
        cut = crop.cut(331, 277, Draw(0, 0, sample))
        divisors.add(cut.divisor)
        part, whole = parts(jpeg, cut, channels)
        shifted = [np.roll(whole, step, axis) for axis in (0, 1) for step in (1, -1)]
        assert psnr(part, whole) > 30
        assert all(psnr(part, whole) > psnr(part, other) + 6 for other in shifted)
    assert divisors - {1}


def test_padding_lies_around_a_part() -> None:
    jpeg = encoded(20, 100, "444")
    part, whole = parts(jpeg, CenterCrop(50).cut(20, 100, Draw(0, 0, 0)), 3)
    assert (part == whole).all()
    assert not part[:15].any()
    assert part[15:35].any()


def test_memory_is_used_again_but_results_are_kept() -> None:
    one, other = encoded(64, 64, "420"), encoded(64, 50, "420")
    cut = Cut(0, 0, 32, 32, (32, 32))
    first = decode_parts(field(3), one, lambda *_: [cut])[0].resized()
    kept = first.copy()
    decode_parts(field(3), other, lambda *_: [cut])
    assert (first == kept).all()


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_bytes_that_are_no_jpeg_are_damage(data: bytes) -> None:
    head = encoded(8, 8, "420")
    for broken in (data, head[: len(data)], head[:2] + data):
        with pytest.raises(DamageError):
            decode_parts(field(3), broken, lambda height, width: [Cut(0, 0, height, width, (4, 4))])


def test_a_picture_larger_than_the_manifest_says_is_damage() -> None:
    small = FieldSpec("image", "image", "jpg", "jpg", "uint8", (None, None, 3), (60, 60, 3))
    with pytest.raises(DamageError, match=r"\(64, 64, 3\)"):
        decode_parts(small, encoded(64, 64, "420"), lambda height, width: [Cut(0, 0, height, width, (4, 4))])


def test_the_header_is_read_past_others() -> None:
    jpeg = by_pillow(40, 30, exif=b"Exif\0\0" + bytes(300), comment=b"\xff\xc0 not a frame")
    frame = read_frame(jpeg)
    assert (frame.height, frame.width, frame.mcu, frame.simple) == (40, 30, (16, 16), True)
    assert not read_frame(by_pillow(40, 30, progressive=True)).simple
