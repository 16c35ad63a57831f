"""Field bytes to arrays, into given memory where there is some. Knows no torch.

JPEG by simplejpeg, which decodes into a buffer and releases the GIL; PNG and WebP by OpenCV, loaded when a store has
them.
"""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packer_reader.errors import DamageError, MissingError
from packer_reader.format.fields import ROWS
from packer_reader.locks import ThreadLock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from packer_reader.crops import Cut
    from packer_reader.format.fields import FieldSpec

__all__ = ["Part", "as_picture", "decode_field", "decode_image", "decode_parts"]

Pixels = npt.NDArray[Any]


def decode_field(field: FieldSpec, data: bytes | memoryview) -> Any:
    """One field as a numpy array, int, str, bytes or JSON value, by its kind.

    Raises:
        DamageError: the bytes are not what the manifest says.
    """
    if field.kind == "image":
        return decode_image(field, data)
    if field.kind in {"mask", "depth"}:
        return decode_image(as_picture(field), data)[..., 0]
    if field.codec == "npy":
        return _npy(field, data)
    if field.codec == ROWS:
        return _row(field, data)
    read: Callable[[bytes], Any] = _VALUES.get(field.kind) or _VALUES.get(field.codec, bytes)
    return read(bytes(data))


def _number(data: bytes) -> float:
    found = json.loads(data)
    return math.nan if found is None else found


_VALUES: dict[str, Callable[[bytes], Any]] = {"label": int, "number": _number, "json": json.loads, "txt": bytes.decode}
"""How a value is read, by kind or codec; others stay bytes."""


def as_picture(field: FieldSpec) -> FieldSpec:
    """A mask or depth map, (h, w), as a picture of one channel, (h, w, 1)."""
    return replace(field, shape=(*field.shape, 1), maximum=(*field.maximum, 1))


def decode_image(field: FieldSpec, data: bytes | memoryview, out: Pixels | None = None) -> Pixels:
    """Decode an image.

    Args:
        field: its description.
        data: the encoded bytes.
        out: (h, w, c) of the field's dtype, contiguous, of the image's own size; filled and returned when given.

    Returns:
        uint8 or uint16 (h, w, c), as the field says.

    Raises:
        DamageError: it does not decode, or is larger than the manifest's maximum.
    """
    if field.codec == "jpg":
        return _jpg(field, data, out)
    pixels = _npy(field, data) if field.codec == "npy" else _opencv(field, data)
    if field.kind != "image" and pixels.dtype == np.uint8:
        pixels = pixels.astype(field.dtype, copy=False)  # a set of masks may have 8 and 16 bits
    if (
        pixels.ndim != 3
        or pixels.dtype != np.dtype(field.dtype)
        or any(s > m for s, m in zip(pixels.shape, field.maximum, strict=True))
    ):
        raise _damage(field, f"decodes to {pixels.dtype} {pixels.shape}, the manifest allows {field.maximum}")
    if out is None:
        return pixels if pixels.flags.writeable else pixels.copy()  # never a view of the mapped store
    if pixels.shape != out.shape:
        raise _damage(field, f"decodes to {pixels.shape} instead of {out.shape}")
    np.copyto(out, pixels)
    return out


@dataclass(frozen=True, slots=True)
class Part:
    """What of an image a cut needs."""

    pixels: Pixels
    """(h, w, c), of memory that is used again for this thread's next image, or a view of the bytes."""
    extent: tuple[float, float] | None
    cut: Cut
    whole: tuple[int, int]
    """Height and width of the image."""

    def resized(self, out: Pixels | None = None, fill: int | None = None) -> Pixels:
        """The cut's result, in memory of its own or in `out`; with `fill` that of labels, see `Cut.resized`."""
        done = self.cut.resized(self.pixels, self.whole, self.extent, out, fill=fill)
        return done.copy() if done is self.pixels else done


def decode_parts(field: FieldSpec, data: bytes | memoryview, cut: Callable[[int, int], Sequence[Cut]]) -> list[Part]:
    """Decode of an image what some cuts of it need, once.

    Args:
        field: its description.
        data: the encoded bytes.
        cut: what to cut from an image of a height and a width.

    Raises:
        DamageError: it does not decode, or is larger than the manifest's maximum.
    """
    if field.codec == "jpg":
        from packer_reader.jpeg import decode_cuts, read_frame  # noqa: PLC0415 - stores without JPEG need none

        gray = field.maximum[-1] == 1
        try:
            frame = read_frame(data)
            whole = _allowed(field, (frame.height, frame.width, 1 if gray else 3))
            cuts = cut(*whole)
            found = decode_cuts(data, frame, cuts, gray=gray)
        except ValueError as error:
            raise _damage(field, f"does not decode ({error})") from None
        return [Part(pixels, extent, one, whole) for (pixels, extent), one in zip(found, cuts, strict=True)]
    pixels = _npy(field, data) if field.codec == "npy" else decode_image(field, data)
    whole = _allowed(field, pixels.shape)
    return [Part(one.inside(pixels), None, one, whole) for one in cut(*whole)]


def _allowed(field: FieldSpec, shape: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of a shape that the manifest allows."""
    height, width, channels = field.maximum
    if len(shape) != 3 or shape[0] > height or shape[1] > width or shape[2] > channels:
        raise _damage(field, f"decodes to {shape}, the manifest allows {field.maximum}")
    return shape[0], shape[1]


def _damage(field: FieldSpec, what: str) -> DamageError:
    return DamageError(f"field {field.name!r} {what}")


def _jpg(field: FieldSpec, data: bytes | memoryview, out: Pixels | None) -> Pixels:
    from packer_reader.jpeg import decode_whole, size_of  # noqa: PLC0415 - stores without JPEG need none

    channels = 1 if field.maximum[-1] == 1 else 3
    if field.dtype != "uint8":
        raise _damage(field, f"is a JPEG of 8 bits, the manifest says {field.dtype}")
    try:
        if out is None:
            _allowed(field, (*size_of(data), channels))
        pixels = decode_whole(data, out, gray=channels == 1)
        if out is not None and pixels.shape != out.shape:
            raise _damage(field, f"decodes to {pixels.shape} instead of {out.shape}")
    except ValueError as error:
        raise _damage(field, f"does not decode ({error})") from None
    return pixels if out is None else out


def _opencv(field: FieldSpec, data: bytes | memoryview) -> Pixels:
    try:
        cv2 = import_module("cv2")
    except ImportError as error:
        raise MissingError(f"{field.codec} images need OpenCV ({error}): pip install opencv-python-headless") from None
    gray = field.maximum[-1] == 1
    flags = cv2.IMREAD_GRAYSCALE if gray else cv2.IMREAD_COLOR_RGB
    if field.dtype == "uint16":
        flags |= cv2.IMREAD_ANYDEPTH
    size = _declared_size(bytes(data[:32]))
    if size is not None and any(s > m for s, m in zip(size, field.maximum, strict=False)):
        raise _damage(field, f"says that it is {size}, the manifest allows {field.maximum}")
    encoded = np.frombuffer(data, np.uint8)
    decoded = cv2.imdecode(encoded, flags | cv2.IMREAD_IGNORE_ORIENTATION) if len(encoded) else None
    if decoded is None:
        raise _damage(field, "does not decode")
    pixels: Pixels = decoded
    return pixels[..., None] if gray else pixels


def _declared_size(head: bytes) -> tuple[int, int] | None:
    """Height and width from the header of a PNG or WebP; None for anything else."""
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return int.from_bytes(head[20:24], "big"), int.from_bytes(head[16:20], "big")
    if head[8:16] == b"WEBPVP8X":
        return int.from_bytes(head[27:30], "little") + 1, int.from_bytes(head[24:27], "little") + 1
    if head[8:16] == b"WEBPVP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if head[8:16] == b"WEBPVP8 ":
        return int.from_bytes(head[28:30], "little") & 0x3FFF, int.from_bytes(head[26:28], "little") & 0x3FFF
    return None


def _npy(field: FieldSpec, data: bytes | memoryview) -> npt.NDArray[Any]:
    """A view into the bytes; arrays of objects are refused, so nothing is ever unpickled."""
    try:
        start = 10 + int.from_bytes(data[8:10], "little")  # version 1, as numpy writes all but odd headers
        shape, fortran, dtype, start = _npy_header(bytes(data[: start if bytes(data[6:8]) == b"\1\0" else 4096]))
        if dtype.hasobject or fortran:
            raise _damage(field, "is an array of objects, or not in C order")
        return np.frombuffer(data, dtype, offset=start).reshape(shape)
    except ValueError as error:
        raise _damage(field, f"is no array ({error})") from None


def _row(field: FieldSpec, data: bytes | memoryview) -> npt.NDArray[Any] | int:
    """A sample's part of a block: an array of the field's shape, or a number."""
    values = np.frombuffer(data, field.dtype)
    if None not in field.shape and values.size != math.prod(s for s in field.shape if s is not None):
        raise _damage(field, f"has {values.size} values, its shape is {field.shape}")
    return values if field.shape else int(values[0])


_PARSING = ThreadLock()


@lru_cache(maxsize=64)
def _npy_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order, dtype, and where the array begins.

    Under a lock, since numpy parses the header as Python, and Python 3.11's parser fails where threads switch in it.
    """
    stream = io.BytesIO(head)
    with _PARSING:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        return *read(stream), stream.tell()
