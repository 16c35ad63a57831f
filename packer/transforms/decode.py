"""Source pictures to upright uint8 pixels. By content, never by extension; by stated rules, never by chance.

JPEG goes through simplejpeg (libjpeg-turbo), everything else, and JPEGs it does not take, through Pillow:

- EXIF orientation is applied first. Pixels end up upright and the tag is gone.
- 16 bits become 8 by scaling (v / 257), not by clipping, or 8 become 16 (v * 257) with `bits=16`. 1 bit becomes 0 and
  255. Palettes become their colours.
- Alpha is dropped, the colour under it kept. CMYK is converted to RGB. Colour profiles are ignored.
- Of animations and pages the first is taken. Float and 32-bit pixels have no known range and are
  refused.
- A JPEG much larger than what it is resized to is decoded at 1/2, 1/4 or 1/8 (libjpeg's DCT scaling; other fractions
  have no SIMD and are slower than a full decode), so that both sides keep at least 1.5 times the target.
"""

from __future__ import annotations

import io
import struct
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from packer_reader.errors import SampleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Picture", "Target", "decode", "picture_of", "turned"]

Pixels = npt.NDArray[Any]

_DCT_MARGIN = 1.5
"""Sides of a reduced decode, in sides of the target: below it, DCT scaling shows (worst 44 dB at 1.5)."""
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
    """uint8, or uint16 with 16 bits, (h, w, c), c being 3, or 1 for gray."""
    codec: str
    """One of `SOURCE_CODECS`: `jpg`, `png`, ...; `png16`, `tiff16` where the source has 16 bits."""
    plain: bool
    """Whether the reader's decoder gives these very pixels from the original bytes."""
    size: tuple[int, int]
    """Upright height and width of the whole picture."""
    reduced: Reduced | None = None
    """Set when the pixels are smaller than the picture, and not upright yet."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """A picture that was decoded at a fraction of its size."""

    extent: tuple[float, float]
    """Rows and columns that the whole picture covers; libjpeg rounds its sides up, and ignoring that shifts the image
    by up to half a pixel."""
    turn: int
    """EXIF orientation still to be applied."""


class Target(Protocol):
    """What a picture of a size will be resized to."""

    @property
    def side(self) -> int:
        """The longer side of every result is at least this, unless the picture is smaller."""

    def __call__(self, height: int, width: int, /) -> tuple[int, int]:
        """Height and width after scaling, of an upright picture."""


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
            turn = _jpeg_orientation(data)
            plain = turn == 1 and (space == "Gray" or not gray)
            picture = _turbo(data, (height, width), turn, target, gray=gray, plain=plain)
            if picture is not None:
                return picture if bits == 8 else replace(picture, pixels=_widened(picture.pixels), plain=False)
    return _pillow(data, gray=gray, max_pixels=max_pixels, bits=bits)


def picture_of(pixels: Pixels, *, gray: bool, bits: int) -> Picture:
    """Pixels that a Python data set gave, by the same rules.

    Args:
        pixels: uint8 or uint16 (h, w) or (h, w, c), c being 1, 3 or 4 (alpha, dropped).
        gray: one channel instead of three.
        bits: 8 or 16 per channel.

    Raises:
        SampleError: `unsupported`, another number of channels.
    """
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.shape[2] not in {1, 3, 4} or not pixels.size:
        raise SampleError("unsupported", f"the pixels are {pixels.shape}, images have 1, 3 or 4 channels, last")
    wide = pixels.dtype == np.uint16
    pixels = _with_bits(pixels[..., : min(3, pixels.shape[2])], bits)
    return Picture(
        _with_channels(pixels, gray=gray), "pixels16" if wide else "pixels", plain=False, size=pixels.shape[:2]
    )


def _check_size(height: int, width: int, max_pixels: int) -> None:
    if height * width > max_pixels:
        raise SampleError("too-large", f"{width} x {height} pixels are over the limit of {max_pixels} (--max-pixels)")


def _turbo(
    data: bytes, size: tuple[int, int], turn: int, target: Target | None, *, gray: bool, plain: bool
) -> Picture | None:
    """Decode with libjpeg-turbo; None when only stray bytes behind the last pixel made it refuse."""
    divisor = _divisor(size, turn, target)
    least = (-(-size[0] // divisor), -(-size[1] // divisor)) if divisor > 1 else (0, 0)
    try:
        pixels = simplejpeg.decode_jpeg(data, "GRAY" if gray else "RGB", min_height=least[0], min_width=least[1])
    except ValueError as error:
        if str(error).endswith("extraneous bytes before marker 0xd9"):
            return None
        if str(error).startswith("Premature end of JPEG"):
            raise SampleError("truncated", "the JPEG ends before its pixels do") from None
        raise SampleError("corrupt", "the JPEG's data are damaged") from None
    upright = size if turn < 5 else size[::-1]
    if divisor == 1:
        return Picture(turned(pixels, turn), "jpg", plain=plain, size=upright)
    extent = (size[0] / divisor, size[1] / divisor)
    return Picture(pixels, "jpg", plain=False, size=upright, reduced=Reduced(extent, turn))


def _divisor(size: tuple[int, int], turn: int, target: Target | None) -> int:
    """The largest of 8, 4, 2 that keeps both sides well above the target, or 1."""
    if target is None or max(size) < 2 * _DCT_MARGIN * target.side:
        return 1
    rows, columns = target(*size) if turn < 5 else target(*size[::-1])[::-1]
    fits = [d for d in (8, 4, 2) if size[0] >= _DCT_MARGIN * rows * d and size[1] >= _DCT_MARGIN * columns * d]
    return max(fits, default=1)


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


def turned(pixels: Pixels, turn: int) -> Pixels:
    """An EXIF orientation undone."""
    return np.ascontiguousarray(_TURNS[turn](pixels))


def _pillow(data: bytes, *, gray: bool, max_pixels: int, bits: int) -> Picture:
    with warnings.catch_warnings(), _no_limit_but_ours():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                _check_size(image.height, image.width, max_pixels)
                codec = (image.format or "").lower()
                stored, frames = image.mode, getattr(image, "n_frames", 1)
                image.load()
                turn = image.getexif().get(_ORIENTATION, 1)
                deep = _is_deep_png(data)
                if deep:
                    pixels = turned(_deep_png(data), turn if turn in _TURNS else 1)
                else:
                    pixels = _pixels(ImageOps.exif_transpose(image), stored=stored, codec=codec, gray=gray)
        except UnidentifiedImageError:
            raise _unidentified(data) from None
        except SampleError:
            raise
        except Exception as error:  # noqa: BLE001 - codecs raise many kinds, and one bad sample may not stop the others
            raise _broken(error) from None
    codec = _NAMES.get(codec, codec) + ("16" if deep or stored.startswith("I") else "")
    pixels = _with_channels(_with_bits(pixels, bits), gray=gray)
    same = bits == (16 if deep or stored.startswith("I") else 8) and stored in ({"L", "I;16"} if gray else {"RGB"})
    plain = same and turn == 1 and frames == 1 and codec in {"png", "webp", "png16"}
    return Picture(pixels, codec, plain=plain, size=pixels.shape[:2])


_NAMES = {"jpeg": "jpg", "mpo": "jpg", "jpeg2000": "jp2"}
"""Pillow's names of formats where ours differ."""


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


def _deep_png(data: bytes) -> Pixels:
    """A PNG of 16 bits with colour or alpha, of which Pillow drops the low bytes; uint16 (h, w, c), without alpha."""
    deep = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION)
    if deep is None or deep.dtype != np.uint16:
        raise SampleError("corrupt", "the image's data are damaged")
    return deep[..., None] if deep.ndim == 2 else np.ascontiguousarray(deep[..., 2::-1])


def _with_bits(pixels: Pixels, bits: int) -> Pixels:
    """The same picture with 8 or 16 bits per channel."""
    if pixels.dtype == np.uint16:
        return pixels if bits == 16 else ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8)
    return pixels if bits == 8 else _widened(pixels)


def _widened(pixels: Pixels) -> Pixels:
    return pixels.astype(np.uint16) * np.uint16(257)


def _with_channels(pixels: Pixels, *, gray: bool) -> Pixels:
    """(h, w, 1) for gray, (h, w, 3) otherwise."""
    if pixels.shape[2] == (1 if gray else 3):
        return np.ascontiguousarray(pixels)
    if not gray:
        return np.repeat(pixels, 3, axis=2)
    if pixels.dtype == np.uint8:
        return np.array(Image.fromarray(np.ascontiguousarray(pixels)).convert("L"))[..., None]
    return np.asarray(cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2GRAY))[..., None]


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
    if stored == "I" and codec != "png":
        raise SampleError("unsupported", "32-bit pixels have no known 8-bit range")
    if image.mode.startswith("I"):
        return np.asarray(image).astype(np.uint16)[..., None]
    if image.mode in {"P", "PA"}:
        image = image.convert("RGBA")
    if gray and image.mode not in {"L", "LA", "1"}:
        image = image.convert("RGB")
    pixels = np.array(image.convert("L" if gray else "RGB"))
    return pixels[..., None] if gray else pixels
