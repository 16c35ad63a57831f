"""Source pictures to upright uint8 pixels. By content, never by extension; by stated rules, never by chance.

JPEG goes through libjpeg-turbo, everything else, and JPEGs it does not take, through Pillow:

- EXIF orientation is applied first. Pixels end up upright and the tag is gone.
- 16 bits become 8 by scaling (v / 257), not by clipping, or 8 become 16 (v * 257) with `bits=16`. 1 bit becomes 0 and
  255. Palettes become their colours.
- Alpha is dropped, the colour under it kept. CMYK is converted to RGB. Colour profiles are ignored.
- Of animations and pages the first is taken. Float and 32-bit pixels have no known range and are
  refused.
"""

from __future__ import annotations

import io
import re
import warnings
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import cv2
import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from packer.transforms.jpeg import ORIENTATION, decode_jpeg, jpeg_orientation
from packer.transforms.picture import TURNS, Picture, Pixels, turned, widened, with_bits, with_channels
from packer_reader.errors import SampleError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packer.transforms.jpeg import Target

__all__ = ["decode", "no_limit_but_ours", "upright_size"]

Image.init()
_FORMATS: list[str] = [
    name
    for name in ("JPEG", "MPO", "PNG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000")
    if name in Image.OPEN
]
"""What Pillow may take a file for: nothing that starts another program, as PostScript would."""


def decode(data: bytes, *, gray: bool, max_pixels: int, bits: int = 8, target: Target | None = None) -> Picture:
    """Decode a whole picture.

    Args:
        data: the file's bytes.
        gray: one channel of ITU-R 601 luma instead of RGB.
        max_pixels: the largest height x width.
        bits: 8 or 16 per channel.
        target: what it will be resized to, when a reduced decode is fine.

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
            turn = jpeg_orientation(data)
            plain = turn == 1 and (space == "Gray" or not gray)
            picture = decode_jpeg(data, (height, width), turn, target, gray=gray, plain=plain)
            if picture is not None:
                return picture if bits == 8 else replace(picture, pixels=widened(picture.pixels), plain=False)
    return _pillow(data, gray=gray, max_pixels=max_pixels, bits=bits)


def upright_size(data: bytes, max_pixels: int) -> tuple[int, int]:
    """Height and width of a picture as its header has them, turned upright; its pixels are not decoded.

    Raises:
        SampleError: `not-an-image`, `truncated`, `corrupt` or `too-large`, as far as a header tells.
    """
    with warnings.catch_warnings(), no_limit_but_ours():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                width, height = image.size
                turn = image.getexif().get(ORIENTATION, 1) if image.format != "TIFF" else 1  # those Pillow turns
        except UnidentifiedImageError:
            raise _unidentified(data) from None
        except Exception as error:  # noqa: BLE001 - as in decoding
            raise _broken(error) from None
    _check_size(height, width, max_pixels)
    return (width, height) if turn in _SIDEWAYS else (height, width)


_SIDEWAYS = frozenset({5, 6, 7, 8})
"""EXIF orientations that swap height and width."""


def _check_size(height: int, width: int, max_pixels: int) -> None:
    if height * width > max_pixels:
        raise SampleError("too-large", f"{width} x {height} pixels are over the limit of {max_pixels} (--max-pixels)")


def _pillow(data: bytes, *, gray: bool, max_pixels: int, bits: int) -> Picture:
    with warnings.catch_warnings(), no_limit_but_ours():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                _check_size(image.height, image.width, max_pixels)
                codec = (image.format or "").lower()
                stored, frames = image.mode, getattr(image, "n_frames", 1)
                image.load()
                said = image.getexif().get(ORIENTATION, 1)
                turn = said if said in TURNS else 1
                depth = _depth(data, image)
                deep = depth > 8 and stored in _COLOUR
                wide = _deep(data, depth) if deep else None
                if wide is not None:
                    pixels = turned(wide, turn)
                else:
                    _check_bits(depth if deep else 8, bits)
                    pixels = _pixels(ImageOps.exif_transpose(image), stored=stored, codec=codec, gray=gray)
        except UnidentifiedImageError:
            raise _unidentified(data) from None
        except SampleError:
            raise
        except Exception as error:  # noqa: BLE001 - codecs raise many kinds, and one bad sample may not stop the others
            raise _broken(error) from None
    codec = _NAMES.get(codec, codec) + ("16" if deep or stored.startswith("I") else "")
    pixels = with_channels(with_bits(pixels, bits), gray=gray)
    same = bits == (16 if deep or stored.startswith("I") else 8) and stored in ({"L", "I;16"} if gray else {"RGB"})
    plain = same and said == 1 and frames == 1 and codec in {"png", "webp", "png16"}
    return Picture(pixels, codec, plain=plain, size=pixels.shape[:2], turn=turn)


_NAMES = {"jpeg": "jpg", "mpo": "jpg", "jpeg2000": "jp2"}
"""Pillow's names of formats where ours differ."""


@contextmanager
def no_limit_but_ours() -> Iterator[None]:
    """Pillow's limit on pixels is lifted for a moment: ours is checked on the header before anything is decoded."""
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


_COLOUR = frozenset({"RGB", "RGBA", "LA", "La", "RGBa", "CMYK", "YCbCr", "P"})
"""Modes that Pillow gives 16 bits in as well, without their low bytes."""


def _depth(data: bytes, image: Image.Image) -> int:
    """Bits per channel as the file says; 8 where it does not."""
    if image.format == "PNG":
        return data[24]
    if image.format == "TIFF":
        return int(max(image.tag_v2.get(258, (8,))))  # type: ignore[attr-defined]
    if image.format == "PPM":
        found = re.match(rb"P[2356]\s+(?:#.*\n)*\s*[0-9]+\s+[0-9]+\s+([0-9]+)\s", data[:512])
        return int(found.group(1)).bit_length() if found else 8
    if image.format == "JPEG2000":
        box = data.find(b"ihdr", 0, 512)
        at = box + 14 if box >= 0 else 42 if data[:2] == b"\xff\x4f" else -1
        return (data[at] & 0x7F) + 1 if 0 <= at < len(data) else 8
    return 8


def _check_bits(depth: int, bits: int) -> None:
    if bits == 16 and depth > 8:
        raise SampleError("unsupported", f"colours of {depth} bits are not read from this format")


def _deep(data: bytes, depth: int) -> Pixels | None:
    """A picture of 16 bits with colour or alpha; uint16 (h, w, c), without alpha. None when OpenCV does not read it."""
    deep = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION)
    if deep is None and data[:4] == b"\x89PNG":
        raise SampleError("corrupt", "the image's data are damaged")
    if deep is None or depth != 16 or deep.dtype != np.uint16:
        return None
    return deep[..., None] if deep.ndim == 2 else np.ascontiguousarray(deep[..., 2::-1])


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


def _pixels(image: Image.Image, *, stored: str, codec: str, gray: bool) -> Pixels:
    """Pixels of a loaded, upright image, (h, w, c) of 8 or 16 bits; `stored` is the mode of the file."""
    if stored == "F":
        raise SampleError("unsupported", "float pixels have no known 8-bit range")
    if stored == "I" and codec not in {"png", "ppm"}:
        raise SampleError("unsupported", "32-bit pixels have no known 8-bit range")
    if image.mode.startswith("I"):
        return np.asarray(image).astype(np.uint16)[..., None]
    if image.mode in {"P", "PA"}:
        image = image.convert("RGBA")
    if gray and image.mode not in {"L", "LA", "1"}:
        image = image.convert("RGB")
    pixels = np.array(image.convert("L" if gray else "RGB"))
    return pixels[..., None] if gray else pixels
