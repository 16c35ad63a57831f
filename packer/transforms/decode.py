"""Source pictures to upright uint8 pixels. By content, never by extension; by stated rules, never by chance.

JPEG goes through simplejpeg (libjpeg-turbo), everything else, and JPEGs it does not take, through Pillow:

- EXIF orientation is applied first. Pixels end up upright and the tag is gone.
- 16 bits become 8 by scaling (v / 257), not by clipping. 1 bit becomes 0 and 255. Palettes become their colours.
- Alpha is dropped, the colour under it kept. CMYK is converted to RGB. Colour profiles are ignored.
- Of animations and pages the first is taken. Float and 32-bit pixels have no known range and are
  refused.
"""

from __future__ import annotations

import io
import struct
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from packer_reader.errors import SampleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Picture", "decode"]

Pixels = npt.NDArray[np.uint8]

_ORIENTATION = 0x0112
Image.init()
_FORMATS: list[str] = [
    name
    for name in ("JPEG", "MPO", "PNG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000")
    if name in Image.OPEN
]
"""What Pillow may take a file for: nothing that starts another program, as PostScript would."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded picture."""

    pixels: Pixels
    """uint8 (h, w, c), c being 3, or 1 for gray."""
    codec: str
    """What it was: `jpg`, `png`, `webp`, `gif`, ...; `png16`, `tiff16` where 16 bits became 8."""
    plain: bool
    """Whether the reader's decoder gives these very pixels from the original bytes."""


def decode(data: bytes, *, gray: bool, max_pixels: int) -> Picture:
    """Decode a whole picture.

    Args:
        data: the file's bytes.
        gray: one channel of ITU-R 601 luma instead of RGB.
        max_pixels: the largest height x width.

    Raises:
        SampleError: with the failure class `not-an-image`, `truncated`, `corrupt`, `unsupported` or `too-large`.
    """
    if data[:2] == b"\xff\xd8":
        try:
            height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        except ValueError:
            space = None  # cut inside the header, or a layout that only Pillow takes
        if space in {"YCbCr", "RGB", "Gray"}:
            _check_size(height, width, max_pixels)
            picture = _turbo(data, gray=gray, plain=space == "Gray" or not gray)
            if picture is not None:
                return picture
    return _pillow(data, gray=gray, max_pixels=max_pixels)


def _check_size(height: int, width: int, max_pixels: int) -> None:
    if height * width > max_pixels:
        raise SampleError("too-large", f"{width} x {height} pixels are over the limit of {max_pixels} (--max-pixels)")


def _turbo(data: bytes, *, gray: bool, plain: bool) -> Picture | None:
    """Decode with libjpeg-turbo; None when only stray bytes behind the last pixel made it refuse."""
    try:
        pixels = simplejpeg.decode_jpeg(data, "GRAY" if gray else "RGB")
    except ValueError as error:
        if str(error).endswith("extraneous bytes before marker 0xd9"):
            return None
        if str(error).startswith("Premature end of JPEG"):
            raise SampleError("truncated", "the JPEG ends before its pixels do") from None
        raise SampleError("corrupt", "the JPEG's data are damaged") from None
    turn = _jpeg_orientation(data)
    return Picture(_upright(pixels, turn), "jpg", plain=plain and turn == 1)


def _jpeg_orientation(data: bytes) -> int:
    """The EXIF orientation, 1 without one; EXIF is parsed only where a header segment says that it is there."""
    if not _has_exif(data):
        return 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            turn = Image.open(io.BytesIO(data), formats=["JPEG"]).getexif().get(_ORIENTATION, 1)
    except (OSError, ValueError, SyntaxError, struct.error):
        return 1
    return turn if isinstance(turn, int) and 1 <= turn <= 8 else 1


def _has_exif(data: bytes) -> bool:
    """Whether a segment before the scan is an APP1 with EXIF; it may lie behind any amount of others."""
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # a fill byte
            place += 1
            continue
        if marker == 0xDA:
            return False
        if marker == 0xE1 and data[place + 4 : place + 10] == b"Exif\0\0":
            return True
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return False


_TURNS: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.swapaxes(0, 1),
    6: lambda p: np.rot90(p, -1),
    7: lambda p: p.swapaxes(0, 1)[::-1, ::-1],
    8: lambda p: np.rot90(p, 1),
}


def _upright(pixels: Pixels, turn: int) -> Pixels:
    return np.ascontiguousarray(_TURNS[turn](pixels))


def _pillow(data: bytes, *, gray: bool, max_pixels: int) -> Picture:
    with warnings.catch_warnings(), _no_limit_but_ours():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                _check_size(image.height, image.width, max_pixels)
                codec = (image.format or "").lower()
                stored, frames = image.mode, getattr(image, "n_frames", 1)
                image.load()
                turned = image.getexif().get(_ORIENTATION, 1) != 1
                deep = _is_deep_png(data)
                upright = ImageOps.exif_transpose(_scaled_png(data, image) if deep else image)
                pixels = _to_uint8(upright, stored=stored, codec=codec, gray=gray)
        except UnidentifiedImageError:
            raise _unidentified(data) from None
        except SampleError:
            raise
        except Exception as error:  # noqa: BLE001 - codecs raise many kinds, and one bad sample may not stop the others
            raise _broken(error) from None
    codec = {"jpeg": "jpg", "mpo": "jpg"}.get(codec, codec) + ("16" if deep or stored.startswith("I") else "")
    plain = not turned and frames == 1 and stored == ("L" if gray else "RGB")
    return Picture(pixels, codec, plain=plain and codec in {"png", "webp"})


@contextmanager
def _no_limit_but_ours() -> Iterator[None]:
    """Pillow's limit on pixels is lifted for a moment: ours is checked on the header before anything is decoded."""
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _is_deep_png(data: bytes) -> bool:
    """Whether this is a PNG of 16 bits with colour or alpha."""
    return data[:8] == b"\x89PNG\r\n\x1a\n" and data[24:25] == b"\x10" and data[25:26] != b"\0"


def _scaled_png(data: bytes, opened: Image.Image) -> Image.Image:
    """A PNG of 16 bits with colour or alpha, scaled to 8, of which Pillow drops the low bytes; alpha is dropped."""
    deep = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if deep is None or deep.dtype != np.uint16:
        raise SampleError("corrupt", "the image's data are damaged")
    pixels = ((deep.astype(np.uint32) + 128) // 257).astype(np.uint8)
    scaled = Image.fromarray(pixels if pixels.ndim == 2 else np.ascontiguousarray(pixels[..., 2::-1]))
    scaled.getexif()[_ORIENTATION] = opened.getexif().get(_ORIENTATION, 1)
    return scaled


def _unidentified(data: bytes) -> SampleError:
    if data[:3] == b"\xff\xd8\xff":
        return SampleError("truncated", "the JPEG ends inside its header, or its header is damaged")
    return SampleError("not-an-image", "the content is no image format that is read here")


def _broken(error: Exception) -> SampleError:
    text = str(error).lower()
    if any(
        word in text for word in ("truncated", "not enough", "unexpected end", "buffer is not large", "broken data")
    ):
        return SampleError("truncated", "the image ends before its pixels do")
    if isinstance(error, MemoryError):
        return SampleError("too-large", "there was not enough memory to decode it")
    return SampleError("corrupt", "the image's data are damaged")


def _to_uint8(image: Image.Image, *, stored: str, codec: str, gray: bool) -> Pixels:
    """Pixels of a loaded, upright image; `stored` is the mode of the file."""
    if stored == "F":
        raise SampleError("unsupported", "float pixels have no known 8-bit range")
    if stored == "I" and codec != "png":
        raise SampleError("unsupported", "32-bit pixels have no known 8-bit range")
    if image.mode.startswith("I"):
        wide = np.asarray(image).astype(np.int64)
        image = Image.fromarray(((wide + 128) // 257).astype(np.uint8))
    if image.mode in {"P", "PA"}:
        image = image.convert("RGBA")
    if gray and image.mode not in {"L", "LA", "1"}:
        image = image.convert("RGB")
    pixels = np.array(image.convert("L" if gray else "RGB"))
    return pixels[..., None] if gray else pixels
