"""Source pictures to stored fields: Pillow's pixels, stated rules for odd formats, a class for each failure."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import cv2
import numpy as np
import pytest
import sklearn.datasets
import webdataset
from PIL import Image

from packer import Recipe
from packer.transforms.decode import decode
from packer.transforms.image import moments, open_image
from packer_reader.crops import Draw, RandomResizedCrop
from packer_reader.decode import decode_image, decode_parts
from packer_reader.errors import SampleError
from packer_reader.format.fields import SOURCE_CODECS, FieldSpec
from packer_reader.jpeg import read_frame
from tests.pipeline.pictures import store_image

PHOTO = Image.fromarray(sklearn.datasets.load_sample_image("china.jpg"))
QUADS = np.zeros((48, 64, 3), np.uint8)
QUADS[:24, :32], QUADS[:24, 32:], QUADS[24:, :32], QUADS[24:, 32:] = (
    (220, 40, 40),
    (40, 180, 60),
    (50, 60, 210),
    (235, 215, 60),
)


def encoded(image: Image.Image | np.ndarray, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, kind, **options)
    return buffer.getvalue()


def pixels_of(data: bytes, *, gray: bool = False) -> np.ndarray:
    return decode(data, gray=gray, max_pixels=10**6).pixels


def by_pillow(image: Image.Image, recipe: Recipe) -> np.ndarray:
    """The same geometry with Pillow's antialiased resize of the whole upright image."""
    width, height = image.size
    side, other = recipe.resize[0], recipe.resize[-1]  # type: ignore[index]
    bilinear = Image.Resampling.BILINEAR
    if recipe.fit == "stretch":
        return np.asarray(image.resize((other, side), bilinear))
    if recipe.fit == "pad":
        scale = min(side / height, other / width)
        inner = image.resize((round(width * scale), round(height * scale)), bilinear)
        canvas = Image.new("RGB", (other, side))
        canvas.paste(inner, ((other - inner.width) // 2, (side - inner.height) // 2))
        return np.asarray(canvas)
    if recipe.fit == "crop":
        scale = max(side / height, other / width)
        inner = image.resize((max(other, int(width * scale)), max(side, int(height * scale))), bilinear)
        left, top = round((inner.width - other) / 2), round((inner.height - side) / 2)
        return np.asarray(inner.crop((left, top, left + other, top + side)))
    base = min(width, height) if recipe.fit == "shorter" else max(width, height)
    sides = [side if n == base else int(side * n / base) for n in (width, height)]
    return np.asarray(image.resize((sides[0], sides[1]), bilinear))


@pytest.mark.parametrize("fit", ["shorter", "longer", "stretch", "crop", "pad"])
@pytest.mark.parametrize("side", [54, 100, 224, 300, 600])
def test_resizing_agrees_with_pillow_within_one_level(fit: Any, side: int) -> None:
    recipe = Recipe(resize=(side,), fit=fit, encode="raw", exact=True)
    data = encoded(PHOTO, "JPEG", quality=95)
    stored = np.load(io.BytesIO(store_image(data, "npy", recipe).data)).astype(int)
    expected = by_pillow(Image.open(io.BytesIO(data)).convert("RGB"), recipe).astype(int)
    assert stored.shape == expected.shape
    assert np.abs(stored - expected).max() <= 1


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
def test_exif_orientation_is_applied_first(turn: int, order: str) -> None:
    across = QUADS.swapaxes(0, 1)
    stored = [QUADS, QUADS[:, ::-1], QUADS[::-1, ::-1], QUADS[::-1], across, np.rot90(QUADS, 1), across[::-1, ::-1],
              np.rot90(QUADS, -1)][turn - 1]  # fmt: skip
    tiff = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IHHHIHHI", 8, 1, 274, 3, 1, turn, 0, 0)
    data = encoded(np.ascontiguousarray(stored), "JPEG", quality=95, subsampling=0, exif=b"Exif\0\0" + tiff)
    result = store_image(data, "jpg", Recipe())
    centres = ([12, 12, 36, 36], [16, 48, 16, 48])
    assert np.abs(pixels_of(result.data)[centres].astype(int) - QUADS[centres]).max() <= 12
    assert (result.data == data) == (turn == 1)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "TIFF", "PPM", "WEBP"])
def test_content_decides_the_format(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    assert np.abs(pixels_of(encoded(QUADS, kind, **options)).astype(int) - QUADS).max() <= 1


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    values = np.array([[0, 257, 2000, 60000, 65535]], np.uint16)
    assert pixels_of(encoded(values, "PNG"), gray=True)[0, :, 0].tolist() == [0, 1, 8, 233, 255]


def test_palettes_become_colours_and_alpha_is_dropped() -> None:
    assert np.abs(pixels_of(encoded(Image.fromarray(QUADS).quantize(8), "PNG")).astype(int) - QUADS).max() <= 3
    alpha = np.dstack([QUADS, np.zeros((48, 64), np.uint8)])
    assert (pixels_of(encoded(alpha, "PNG")) == QUADS).all()


def test_one_bit_becomes_black_and_white() -> None:
    bits = Image.fromarray(QUADS[..., 0] > 100)
    assert np.unique(pixels_of(encoded(bits, "PNG"), gray=True)).tolist() == [0, 255]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP"])
def test_gray_weighs_rgb(kind: str) -> None:
    expected = [
        round(0.299 * r + 0.587 * g + 0.114 * b) for r, g, b in QUADS[[12, 12, 36, 36], [16, 48, 16, 48]].tolist()
    ]
    found = pixels_of(encoded(QUADS, kind), gray=True)[[12, 12, 36, 36], [16, 48, 16, 48], 0]
    assert np.abs(found.astype(int) - expected).max() <= 3


def test_animations_give_their_first_frame() -> None:
    frames = [Image.fromarray(QUADS), Image.new("RGB", (64, 48))]
    data = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert np.abs(pixels_of(data).astype(int) - QUADS).max() <= 1


def test_cmyk_is_not_a_negative() -> None:
    ink = np.zeros((16, 16, 4), np.uint8)
    ink[..., 1:3] = 255
    red = pixels_of(encoded(Image.fromarray(ink, "CMYK"), "JPEG", quality=95))[8, 8]
    assert red[0] > 150
    assert red[1:].max() < 100


def test_nothing_to_change_keeps_the_bytes() -> None:
    data = encoded(PHOTO, "JPEG")
    assert store_image(data, "jpg", Recipe()).data == data
    assert store_image(data, "jpg", Recipe(resize=(427,))).data == data
    assert store_image(data + b"trailing", "jpg", Recipe()).data == data + b"trailing"


@pytest.mark.parametrize("options", [{"gray": True}, {"encode": "jpg"}, {"resize": (100,)}])
def test_anything_to_change_encodes_anew(options: dict[str, Any]) -> None:
    data = encoded(PHOTO, "JPEG")
    assert store_image(data, "jpg", Recipe(**options)).data != data


def test_what_it_was_is_noted() -> None:
    assert SOURCE_CODECS[store_image(encoded(QUADS, "PNG"), "jpg", Recipe()).source_codec] == "png"
    assert SOURCE_CODECS[store_image(encoded(QUADS, "PNG"), "png", Recipe()).source_codec] == "png"


def png_claiming(side: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IEND", b"")
    )


JPEG = encoded(PHOTO.resize((200, 100)), "JPEG")
NOISE = encoded(np.random.default_rng(0).integers(0, 255, (99, 99, 3), np.uint8), "PNG")
LYING = JPEG.replace(struct.pack(">HH", 100, 200), struct.pack(">HH", 65000, 65000))


@pytest.mark.parametrize(
    ("data", "failure"),
    [
        pytest.param(JPEG[: len(JPEG) // 2], "truncated", id="half a JPEG"),
        pytest.param(JPEG[:300], "truncated", id="a JPEG's header"),
        pytest.param(b"\xff\xd8\xff\xd9", "truncated", id="two markers"),
        pytest.param(JPEG[:-600] + JPEG[-200:], "corrupt", id="a hole in a JPEG"),
        pytest.param(NOISE[: len(NOISE) // 2], "truncated", id="half a PNG"),
        pytest.param(b"<!DOCTYPE html><p>404</p>", "not-an-image", id="an error page"),
        pytest.param(b"hello", "not-an-image", id="text"),
        pytest.param(LYING, "too-large", id="a lying JPEG"),
        pytest.param(png_claiming(100_000), "too-large", id="a lying PNG"),
        pytest.param(encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"), "unsupported", id="floats"),
    ],
)  # fmt: skip
def test_each_failure_has_its_class(data: bytes, failure: str) -> None:
    with pytest.raises(SampleError, match=r"^[^<>]+$") as caught:
        decode(data, gray=False, max_pixels=10**6)
    assert caught.value.failure == failure


def test_moments_count_every_pixel() -> None:
    wide = QUADS.astype(np.int64)
    assert moments(QUADS) == (*wide.sum((0, 1)).tolist(), *(wide * wide).sum((0, 1)).tolist())
    deep = (QUADS.astype(np.uint16) * 257).astype(np.int64)
    assert moments(deep.astype(np.uint16)) == (*deep.sum((0, 1)).tolist(), *(deep * deep).sum((0, 1)).tolist())


def test_losing_bits_is_noted() -> None:
    wide = encoded(np.array([[0, 257, 65535]], np.uint16), "PNG")
    assert SOURCE_CODECS[store_image(wide, "png", Recipe(gray=True)).source_codec] == "png16"


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / max(1e-9, np.mean((one.astype(float) - other.astype(float)) ** 2))))


def raw(data: bytes, **options: Any) -> np.ndarray:
    pixels: np.ndarray = np.load(io.BytesIO(store_image(data, "npy", Recipe(encode="raw", **options)).data))
    return pixels


@pytest.mark.parametrize("fit", ["shorter", "stretch", "crop", "pad"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(1000, 1501), (811, 1203), (2001, 1333)])
def test_a_reduced_decode_is_as_good_as_a_whole_one(size: tuple[int, int], orientation: int, fit: Any) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(PHOTO.resize(size), "JPEG", quality=95, exif=exif)
    reduced, whole = raw(data, resize=(128,), fit=fit), raw(data, resize=(128,), fit=fit, exact=True)
    assert reduced.shape == whole.shape
    assert 42 < psnr(reduced, whole) < 90


@pytest.mark.parametrize("axis", [0, 1])
def test_a_reduced_decode_shifts_nothing(axis: int) -> None:
    ramp = np.linspace(0, 255, 2 * 999, dtype=np.float32).astype(np.uint8)  # a shift changes all values alike
    picture = np.repeat(np.broadcast_to(ramp[:, None] if axis == 0 else ramp, (1998, 1998))[..., None], 3, 2)
    data = encoded(np.ascontiguousarray(picture), "JPEG", quality=100, subsampling=0)
    reduced, whole = raw(data, resize=(200,), fit="stretch"), raw(data, resize=(200,), fit="stretch", exact=True)
    inner = (slice(10, -10), slice(10, -10))
    difference = (reduced[inner].astype(float) - whole[inner]).mean()
    assert abs(difference) / (255 / 200) < 0.1  # of an output pixel


def test_several_sizes_decode_once_with_the_largest_in_mind() -> None:
    data = encoded(PHOTO.resize((2000, 1500)), "JPEG", quality=95)
    sizes = ((128,), (400,))
    small = Recipe(resize=(128,), sizes=sizes)
    assert open_image(data, small).pixels.shape == open_image(data, Recipe(resize=(400,))).pixels.shape
    assert open_image(data, small).reduced is not None
    assert open_image(data, Recipe(resize=(128,), sizes=((128,), ()))).reduced is None


def test_sixteen_bits_are_kept_exactly() -> None:
    deep = np.arange(0, 65536, 17, dtype=np.uint16)[: 60 * 64].reshape(60, 64)
    data = encoded(deep, "PNG")
    stored = store_image(data, "png", Recipe(bits=16, gray=True))
    assert stored.data == data
    field = FieldSpec("image", "image", "png", "png", "uint16", (60, 64, 1), (60, 64, 1))
    assert (decode_image(field, stored.data)[..., 0] == deep).all()
    assert (raw(data, bits=16, gray=True)[..., 0] == deep).all()
    assert (raw(encoded(QUADS, "PNG"), bits=16) == QUADS.astype(np.uint16) * 257).all()
    half = raw(data, bits=16, gray=True, resize=(30, 32), fit="stretch")
    assert half.dtype == np.uint16
    assert abs(int(half[10, 10, 0]) - int(deep[20:22, 20:22].mean())) < 600


@pytest.mark.parametrize("kind", [".tif", ".ppm", ".png"])
def test_sixteen_bit_colours_of_every_format_are_kept_or_scaled(kind: str) -> None:
    deep = np.random.default_rng(0).integers(0, 65536, (20, 30, 3), np.uint16)
    data = cv2.imencode(kind, deep[..., ::-1])[1].tobytes()
    assert (raw(data, bits=16) == deep).all()
    assert (raw(data) == (deep.astype(np.uint32) + 128) // 257).all()


def test_sixteen_bit_gray_maps_are_kept_or_scaled() -> None:
    deep = np.random.default_rng(0).integers(0, 65536, (20, 30), np.uint16)
    data = cv2.imencode(".pgm", deep)[1].tobytes()
    assert (raw(data, bits=16, gray=True)[..., 0] == deep).all()
    assert (raw(data, gray=True)[..., 0] == (deep.astype(np.uint32) + 128) // 257).all()


def test_sixteen_bit_jpeg_2000_is_read_as_eight_and_refused_as_sixteen() -> None:
    data = encoded(QUADS, "JPEG2000")
    box = data.index(b"ihdr") + 14
    deep = data[:box] + b"\x0f" + data[box + 1 :]  # it says 16 bits
    with pytest.raises(SampleError, match="colours of 16 bits are not read from this format"):
        raw(deep, bits=16)
    assert (raw(data) == QUADS).all()


@pytest.mark.parametrize("size", [(256, 256), (224, 320), (100, 208), (64, 17), (9, 9)])
@pytest.mark.parametrize("gray", [False, True])
def test_roi_gives_ordinary_jpegs_of_which_crops_are_decoded_alone(size: tuple[int, int], *, gray: bool) -> None:
    photo = PHOTO.convert("L" if gray else "RGB")
    data, plain = (
        store_image(
            encoded(photo, "PNG"), "jpg", Recipe(resize=size, fit="crop", gray=gray, encode="jpg", roi=roi)
        ).data
        for roi in (True, False)
    )
    assert len(data) <= 1.05 * len(plain) + 4 * (size[0] // 8 + 1)
    channels = 1 if gray else 3
    field = FieldSpec("image", "image", "jpg", "jpg", "uint8", (*size, channels), (*size, channels))
    whole = decode_image(field, data)
    assert np.abs(whole.astype(int) - decode_image(field, plain)).mean() < 2
    assert (np.asarray(Image.open(io.BytesIO(data))).reshape(whole.shape) == whole).all()
    by_opencv = np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), 0 if gray else cv2.IMREAD_COLOR_RGB))
    assert np.abs(by_opencv.reshape(whole.shape).astype(int) - whole).max() <= 3
    assert webdataset.autodecode.imagehandler("pil")("x.jpg", data).size == size[::-1]
    assert read_frame(data).tile is not None
    for sample in range(20):
        cut = RandomResizedCrop(size).cut(*size, Draw(0, 0, sample))
        assert (decode_parts(field, data, lambda *_, cut=cut: [cut])[0].resized() == cut.of(whole)).all()
