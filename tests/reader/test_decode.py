"""Decoding: into given memory, never past it, and nothing is unpickled."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer.transforms.encode import encode
from packer_reader.crops import CenterCrop, Cut, Draw, HorizontalFlip, RandomResizedCrop, Resize, flip
from packer_reader.decode import decode_field, decode_image, decode_parts
from packer_reader.errors import DamageError, UsageError
from packer_reader.format.fields import FieldSpec
from packer_reader.resize import resize
from packer_reader.sizes import format_bytes, parse_bytes

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)


def spec(codec: str, maximum: tuple[int, ...] = (8, 12, 3)) -> FieldSpec:
    return FieldSpec("image", "image", codec, codec, "uint8", maximum, maximum)


@pytest.mark.parametrize("codec", ["jpg", "png", "webp", "npy"])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_decode_into_given_memory(codec: str, channels: int) -> None:
    pixels = np.ascontiguousarray(PIXELS[..., :channels])
    data, field = encode(pixels, codec, 100), spec(codec, (8, 12, channels))
    alone = decode_image(field, data)
    out = np.zeros_like(pixels)
    assert decode_image(field, memoryview(data), out) is out
    assert (out == alone).all()
    assert alone.flags.writeable
    if codec in {"png", "npy"}:
        assert (alone == pixels).all()


@pytest.mark.parametrize("codec", ["jpg", "png", "webp", "npy"])
def test_images_over_the_manifests_maximum_are_refused(codec: str) -> None:
    with pytest.raises(DamageError, match="the manifest allows"):
        decode_image(spec(codec, (8, 11, 3)), encode(PIXELS, codec, 90))


@pytest.mark.parametrize("codec", ["jpg", "png", "webp", "npy"])
def test_images_of_another_dtype_than_the_manifests_are_refused(codec: str) -> None:
    field = replace(spec(codec), dtype="uint16")
    for out in (None, np.zeros((8, 12, 3), np.uint16)):
        with pytest.raises(DamageError, match="the manifest (says|allows)"):
            decode_image(field, encode(PIXELS, codec, 90), out)


@pytest.mark.parametrize("codec", ["jpg", "png", "webp", "npy"])
@pytest.mark.parametrize("slot", [(8, 11, 3), (12, 8, 3), (9, 12, 3), (16, 16, 3)])
def test_images_of_another_size_than_their_slot_are_refused(codec: str, slot: tuple[int, ...]) -> None:
    with pytest.raises(DamageError, match="instead of"):
        decode_image(spec(codec, (16, 16, 3)), encode(PIXELS, codec, 90), np.zeros(slot, np.uint8))


@pytest.mark.parametrize("marker", [b"\xff\x01", b"\xff\xd0", b"\xff\xd7"])
def test_markers_without_a_length_are_passed_over(marker: bytes) -> None:
    """libjpeg does, wherever they stand in a header."""
    data = encode(PIXELS, "jpg", 90)
    odd = data[:2] + marker + data[2:]
    whole = Cut(0, 0, 8, 12, (8, 12))
    assert (decode_image(spec("jpg"), odd) == decode_image(spec("jpg"), data)).all()
    (part,) = decode_parts(spec("jpg"), odd, lambda *_: [whole])
    assert (part.pixels == decode_image(spec("jpg"), data)).all()


def test_a_damaged_header_does_not_hurt_the_next_image() -> None:
    data = encode(np.tile(PIXELS, (16, 16, 1)), "jpg", 90, roi=True)
    field, scan = spec("jpg", (128, 192, 3)), data.index(b"\xff\xda")
    damaged = data[: scan + 2] + b"\0\1" + data[scan + 4 :]
    cut = Cut(100, 150, 8, 8, (8, 8))
    (before,) = decode_parts(field, data, lambda *_: [cut])
    expected = before.pixels.copy()
    with pytest.raises(DamageError):
        decode_parts(field, damaged, lambda *_: [cut])
    (after,) = decode_parts(field, data, lambda *_: [cut])
    assert (after.pixels == expected).all()


@pytest.mark.parametrize("codec", ["jpg", "png", "webp", "npy"])
@pytest.mark.parametrize("data", [b"", b"garbage", b"\xff\xd8\xff" + bytes(50), b"\x93NUMPY\x01\0\xff\xff"])
def test_garbage_is_an_error_of_ours(codec: str, data: bytes) -> None:
    with pytest.raises(DamageError, match="field 'image'"):
        decode_image(spec(codec), data)


def test_pickled_arrays_are_never_loaded() -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return pytest.fail, ("code was run",)

    stream = io.BytesIO()
    np.lib.format.write_array(
        stream, np.array([Bomb()], object), allow_pickle=True, pickle_kwargs={"fix_imports": False}
    )
    with pytest.raises(DamageError, match="array of objects"):
        decode_field(spec("npy"), stream.getvalue())
    with pytest.raises(DamageError):
        decode_field(spec("npy"), pickle.dumps([1]))


def test_other_kinds_decode_by_codec() -> None:
    def field(kind: str, codec: str) -> FieldSpec:
        return FieldSpec("x", kind, codec, codec, "")

    assert decode_field(field("label", "cls"), b"12") == 12
    assert decode_field(field("json", "json"), b'{"a": 1}') == {"a": 1}
    assert decode_field(field("text", "txt"), "é".encode()) == "é"
    assert decode_field(field("bytes", "msg"), memoryview(b"xy")) == b"xy"


def test_center_crop_is_torchvisions() -> None:
    big = np.arange(9 * 7 * 1, dtype=np.uint8).reshape(9, 7, 1)
    assert (CenterCrop((4, 4)).cut(9, 7, Draw(0, 0, 0)).of(big) == big[2:6, 2:6]).all()
    padded = CenterCrop((11, 7)).cut(9, 7, Draw(0, 0, 0)).of(big)
    assert (padded[1:10] == big).all()
    assert not padded[[0, 10]].any()


def test_center_crop_with_a_ratio_sees_what_resize_and_center_crop_see() -> None:
    assert CenterCrop(224, ratio=0.875).cut(256, 400, Draw(0, 0, 0)) == Cut(16, 88, 224, 224, (224, 224))
    assert CenterCrop(224, ratio=0.875).cut(100, 120, Draw(0, 0, 0)) == Cut(6, 16, 88, 88, (224, 224))
    assert CenterCrop((10, 20), ratio=1).cut(60, 60, Draw(0, 0, 0)) == Cut(14, 0, 30, 60, (10, 20))  # 15 aligned to 2


@pytest.mark.parametrize(("shape", "size"), [((40, 60), (20, 30)), ((60, 40), (30, 20)), ((20, 20), (20, 20))])
def test_resize_takes_the_shorter_side(shape: tuple[int, int], size: tuple[int, int]) -> None:
    pixels = np.asarray(Image.fromarray(PIXELS).resize((shape[1], shape[0])))
    assert Resize(20).cut(*shape, Draw(0, 0, 0)).of(pixels).shape[:2] == size
    assert Resize(20).output(*shape) == size
    assert Resize(20).output(None, None) is None


def test_random_crops_cover_their_range() -> None:
    crop, areas, ratios = RandomResizedCrop(8, scale=(0.2, 0.5)), [], []
    for sample in range(2000):
        top, left, height, width = crop._box(300, 200, Draw(0, 0, sample))
        assert 0 <= top <= 300 - height
        assert 0 <= left <= 200 - width
        areas.append(height * width / 60_000)
        ratios.append(width / height)
    assert 0.19 < min(areas) < 0.22
    assert 0.48 < max(areas) < 0.51
    assert min(ratios) < 0.78
    assert max(ratios) > 1.28
    assert RandomResizedCrop(8, ratio=(5, 6))._box(100, 50, Draw(0, 0, 0)) == (45, 0, 10, 50)


def test_flips_come_half_of_the_time() -> None:
    pixels = np.arange(4, dtype=np.uint8).reshape(1, 4, 1)
    assert flip(pixels)[0, :, 0].tolist() == pixels[0, :, 0].tolist() == [3, 2, 1, 0]
    assert 900 < sum(HorizontalFlip().drawn(Draw(0, 0, n)) for n in range(2000)) < 1100
    assert not HorizontalFlip(0.0).drawn(Draw(0, 0, 0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomResizedCrop(0),
        lambda: RandomResizedCrop(8, scale=(0.5, 0.1)),
        lambda: RandomResizedCrop(8, scale=(1, float("inf"))),
        lambda: RandomResizedCrop(8, ratio=(1e-320, 1e308)),
        lambda: CenterCrop((0, 5)),
        lambda: CenterCrop(5, ratio=1.5),
        lambda: Resize(-1),
        lambda: HorizontalFlip(2),
    ],
)
def test_impossible_crops_are_refused(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MB", 64_000_000), ("1KiB", 1024), ("1.5 GiB", 3 << 29), ("12", 12), ("12b", 12), (7, 7), ("0.5KB", 500)],
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "1 M B", "1XB", "1e6", "0.3B", "nan"])
def test_sizes_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="size is "):
        parse_bytes(text)


def test_sizes_are_written_for_people() -> None:
    assert [format_bytes(n) for n in (5, 1500, 64_000_000, 2.5e12)] == ["5 B", "1.5 KB", "64.0 MB", "2.5 TB"]


@pytest.mark.parametrize("shape", [(60, 80), (150, 223), (224, 100), (17, 9)])
def test_enlarging_quickly_is_within_a_level_of_pillow(shape: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (shape[0] + 5, shape[1] + 3, 3), dtype=np.uint8)[2:-3, 1:-2]
    quick = resize(pixels, 224, 224, quick=True)
    exact = Image.fromarray(np.ascontiguousarray(pixels)).resize((224, 224), Image.Resampling.BILINEAR)
    assert np.abs(quick.astype(int) - np.asarray(exact)).max() <= 1
    gray = resize(pixels[..., :1], 224, 224, quick=True)
    assert np.abs(gray.astype(int) - quick[..., :1]).max() <= 1
