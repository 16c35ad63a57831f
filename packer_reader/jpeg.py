"""JPEGs in part: a crop costs the decoding of little more than its own pixels.

A JPEG with restart markers (`packer build --roi`) is cut to the tiles that a crop touches, before it is decoded: what
lies between two markers decodes on its own. Of any other, the rows below the crop are left out by a smaller height in
the header, which any decoder takes for a shorter picture. Where the crop is much larger than what it becomes, libjpeg
decodes at 1/2, 1/4 or 1/8 (DCT scaling; other fractions have no SIMD and are slower than a full decode).
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer_reader.crops import Cut

__all__ = ["Frame", "decode_cuts", "decode_whole", "read_frame", "size_of"]

Pixels = npt.NDArray[Any]
Bytes = bytes | bytearray | memoryview
Extent = tuple[float, float]

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL = frozenset({0xC0, 0xC1})
_TEMPORARY, _RESTART, _END, _SCAN, _INTERVAL = 0x01, 0xD0, 0xD9, 0xDA, 0xDD


@dataclass(frozen=True, slots=True)
class Frame:
    """What the header says."""

    height: int
    width: int
    place: int
    """Of height and width in the bytes, two each."""
    data: int
    """Where the entropy-coded data begin."""
    mcu: tuple[int, int]
    """Rows and columns of pixels in an MCU."""
    simple: bool
    """One sequential scan of all components, top to bottom; others are decoded as a whole."""
    tile: tuple[int, int] | None
    """Rows and columns of pixels between two restart markers, where these divide each row of MCUs evenly."""


def read_frame(data: Bytes) -> Frame:
    """Read the header of a JPEG (ITU T.81, annex B).

    Raises:
        ValueError: it has none.
    """
    header, known = _LAST.read
    if known is not None and bytes(data[: known.data]) == header:  # a view is compared item by item
        return known
    frame = _parsed(data)
    _LAST.read = bytes(data[: frame.data]), frame
    return frame


def _parsed(data: Bytes) -> Frame:
    segment, start, interval, place = b"", 0, 0, 2
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # a fill byte
            place += 1
            continue
        if marker == _TEMPORARY or _RESTART <= marker < _RESTART + 8:  # they have no length
            place += 2
            continue
        if marker in _FRAMES:
            segment, start = bytes(data[place : place + 19]), place
        elif marker == _INTERVAL:
            interval = int.from_bytes(data[place + 4 : place + 6])
        elif marker == _SCAN:
            break
        place += 2 + (data[place + 2] << 8 | data[place + 3])
    if len(segment) < 13 or place + 5 > len(data):
        raise ValueError("no frame header")
    begun = place + 2 + (data[place + 2] << 8 | data[place + 3])
    if begun < place + 5:  # what is known by its header must have been read from it
        raise ValueError("the scan header is cut")
    components = segment[9]
    factors = [segment[11 + 3 * number] for number in range(min(components, 3)) if 11 + 3 * number < len(segment)]
    # A single component has MCUs of one block, whatever its factors say.
    mcu = (8, 8) if components == 1 else (8 * max(f & 15 for f in factors), 8 * max(f >> 4 for f in factors))
    simple = segment[1] in _SEQUENTIAL and components in {1, 3} and data[place + 4] == components
    height, width = int.from_bytes(segment[5:7]), int.from_bytes(segment[7:9])
    if not height or not width or not all(mcu):
        raise ValueError("the frame header says that something is 0")
    tiled = simple and interval and -(-width // mcu[1]) % interval == 0
    tile = (mcu[0], mcu[1] * interval) if tiled else None
    return Frame(height, width, start + 5, begun, mcu, simple, tile)


def size_of(data: Bytes) -> tuple[int, int]:
    """Height and width.

    Raises:
        ValueError: it has no header.
    """
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    return height, width


def decode_whole(data: Bytes, out: Pixels | None = None, *, gray: bool) -> Pixels:
    """All of a JPEG, uint8 (h, w, 1) or (h, w, 3), in memory of its own or at the beginning of `out`.

    Raises:
        ValueError: it does not decode, or is larger than `out`.
    """
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, "GRAY" if gray else "RGB", buffer=out)
    except ValueError:
        if out is not None and math.prod(size_of(data)) * out.shape[2] > out.size:
            raise ValueError(f"it is {size_of(data)} instead of {out.shape[:2]}") from None
        raise
    return pixels


def decode_cuts(data: Bytes, frame: Frame, cuts: Sequence[Cut], *, gray: bool) -> list[tuple[Pixels, Extent]]:
    """Decode once what some cuts need, without what of them lies outside of the picture.

    Args:
        data: the JPEG.
        frame: its header.
        cuts: rectangles and the sizes they get.
        gray: one channel instead of three.

    Returns:
        For each cut its pixels, uint8 (h, w, c), valid until this thread decodes again; and how many rows and columns
        of them it covers, less than one under h and w where they were decoded at a fraction.

    Raises:
        ValueError: it does not decode.
    """
    divisor = min(cut.divisor for cut in cuts)
    inner = [_Box.of(frame, cut) for cut in cuts]
    whole = _Box(0, 0, frame.height, frame.width)
    tiled = None
    if frame.tile is not None:
        box = whole.tiles(frame.tile, inner, 2 * divisor)
        tiled = _cut_out(data, frame, frame.tile, box)
    if tiled is not None:
        data = tiled
    elif frame.simple:
        box = whole.rows(frame.mcu[0], inner)
        if box.bottom < frame.height:
            data = bytearray(data)
            data[frame.place : frame.place + 2] = box.bottom.to_bytes(2)
    else:
        box = whole
    rows, columns = -(-box.height // divisor), -(-box.width // divisor)
    channels = 1 if gray else 3
    memory = _SCRATCH.take(rows * columns * channels)
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(
            data,
            "GRAY" if gray else "RGB",
            min_height=rows if divisor > 1 else 0,
            min_width=columns if divisor > 1 else 0,
            buffer=memory,
        )
    except ValueError as error:
        # What lies behind the last row that was asked for is nothing to worry about; all else is.
        whole_rows = tiled is not None or box.bottom == frame.height
        if whole_rows or "extraneous bytes before marker" not in str(error):
            raise
        pixels = memory.reshape(rows, columns, channels)
    return [_part(pixels, box, part, divisor) for part in inner]


def _part(pixels: Pixels, box: _Box, part: _Box, divisor: int) -> tuple[Pixels, Extent]:
    extent = (part.height / divisor, part.width / divisor)
    top, left = (part.top - box.top) // divisor, (part.left - box.left) // divisor
    return pixels[top : top - int(-extent[0] // 1), left : left - int(-extent[1] // 1)], extent


class _Box(NamedTuple):
    """A rectangle of pixels."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def height(self) -> int:
        return self.bottom - self.top

    @property
    def width(self) -> int:
        return self.right - self.left

    @classmethod
    def of(cls, frame: Frame, cut: Cut) -> _Box:
        """What of a cut lies in the picture."""
        bottom, right = min(frame.height, cut.top + cut.height), min(frame.width, cut.left + cut.width)
        return cls(max(0, cut.top), max(0, cut.left), bottom, right)

    def rows(self, mcu: int, inner: Sequence[_Box]) -> _Box:
        """The rows down to the last one, and a row of MCUs more, since chroma is upsampled with its neighbours."""
        return _Box(self.top, self.left, min(self.bottom, max(one.bottom for one in inner) + mcu), self.right)

    def tiles(self, tile: tuple[int, int], inner: Sequence[_Box], margin: int) -> _Box:
        """The tiles that hold some rectangles, and some pixels around them for the same reason."""
        rows, columns = tile
        return _Box(
            max(0, min(one.top for one in inner) - margin) // rows * rows,
            max(0, min(one.left for one in inner) - margin) // columns * columns,
            min(self.bottom, -(-(max(one.bottom for one in inner) + margin) // rows) * rows),
            min(self.right, -(-(max(one.right for one in inner) + margin) // columns) * columns),
        )


def _cut_out(data: Bytes, frame: Frame, tile: tuple[int, int], box: _Box) -> Bytes | None:
    """The JPEG of some tiles: their data behind the header, with its sides put right and the markers counted anew.

    None where there are not as many markers as tiles: decoding it as a whole says what is wrong, if anything is.
    """
    if (box.height, box.width) == (frame.height, frame.width):
        return data
    across, down = -(-frame.width // tile[1]), -(-frame.height // tile[0])
    bounds = _tile_bounds(data, frame.data, across * down)
    if bounds is None:
        return None
    rows = slice(box.top // tile[0], -(-box.bottom // tile[0]))
    first, last = box.left // tile[1], -(-box.right // tile[1])
    starts = bounds[:-1].reshape(down, across)[rows, first]
    ends = bounds[1:].reshape(down, across)[rows, first:last]
    head = bytearray(data[: frame.data])
    head[frame.place : frame.place + 4] = box.height.to_bytes(2) + box.width.to_bytes(2)
    stops = ends[:, -1]
    pieces = [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    part = bytearray().join([head, *pieces])
    moved = (stops - starts).cumsum() - stops + (len(head) - 1)  # how far each row went, and its last bytes
    markers = (ends + moved[:, None]).ravel()
    values = np.frombuffer(part, np.uint8)
    values[markers] = _markers(len(markers))
    return part


def _tile_bounds(data: Bytes, start: int, tiles: int) -> npt.NDArray[np.int64] | None:
    """Where each tile begins and, at last, where the picture ends, int64 (tiles + 1,); a tile ends with its marker.

    None where the markers are not those of so many tiles.
    """
    if start >= len(data):
        return None
    view = np.frombuffer(data, np.uint8, offset=start)
    (places,) = (view[:-1] == 0xFF).nonzero()
    seconds = view[1:].take(places)
    (chosen,) = seconds.nonzero()  # FF in the data has a 0 behind it
    chosen = chosen[:tiles]
    if seconds.take(chosen).tobytes() != _markers(tiles).tobytes():
        return None
    bounds = np.empty(tiles + 1, np.int64)
    bounds[0] = start
    np.add(places.take(chosen), start + 2, out=bounds[1:])
    return bounds


@lru_cache
def _markers(tiles: int) -> npt.NDArray[np.uint8]:
    """The second bytes of the markers behind so many tiles, (tiles,)."""
    found = (_RESTART + np.arange(tiles) % 8).astype(np.uint8)
    found[-1] = _END
    found.flags.writeable = False
    return found


class _Scratch(threading.local):
    """Memory to decode into: fresh memory for each picture would cost a quarter of the decoding in page faults."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def take(self, count: int) -> Pixels:
        """So many bytes, the same ones each time."""
        if len(self._memory) < count:
            self._memory = np.empty(count, np.uint8)
        return self._memory[:count]


class _Last(threading.local):
    """The header of the last picture: in a store of one size all are the same, and comparing takes 1 us of 6."""

    read: tuple[bytes, Frame | None] = b"", None


_SCRATCH, _LAST = _Scratch(), _Last()
