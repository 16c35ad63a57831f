"""Stages of reading, each by itself: decoding what lies in memory, handing batches over, and the raw folder."""

from __future__ import annotations

import math
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset, IterableDataset

from packer.measure.counters import used
from packer.measure.limits import copy_rate, decode_rate, disk_rate, forget
from packer.measure.meter import Finished, Meter
from packer.sources.walk import EXTENSIONS
from packer_reader import RandomResizedCrop
from packer_reader.batch import BatchReader
from packer_reader.crops import Draw
from packer_reader.decode import decode_image, decode_parts
from packer_reader.errors import SourceError
from packer_reader.machine import usable_cpus
from packer_reader.sender import Sender
from packer_reader.sequences import SequenceStore
from packer_reader.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from packer.measure.settings import Setting
    from packer.measure.trial import Loop
    from packer_reader.format.fields import FieldSpec
    from packer_reader.stores.base import Store

__all__ = ["STAGES", "decode", "handover", "limits", "raw", "raw_files"]

_HELD = 256 << 20
"""Bytes of encoded images that are decoded over and over."""
_MOST = 1 << 14
_TRIES = 100
"""Images that cannot be opened one after the other, before a folder is given up."""


def limits(loop: Loop, setting: Setting) -> dict[str, Any]:
    """What the machine and the bare libraries do: bytes a second of the disk and of memory, images a second."""
    store = loop.data(setting).store
    picture = _picture(store)
    files = [store.path / name for name in store.all_files()]
    data = sorted((path for path in files if path.suffix in {".tar", ".mdb"}), key=lambda path: path.name)
    coded = picture is not None and picture.codec in {"jpg", "png", "webp"}
    return {
        "disk": disk_rate(data, loop.seconds),
        "copied": copy_rate(),
        "decoded": decode_rate(_blobs(store, picture), picture.codec, loop.seconds) if picture and coded else None,
    }


def decode(loop: Loop, setting: Setting) -> dict[str, Any]:
    """Images of the store decoded by the reader on all threads, out of memory and into memory, not into batches."""
    ds = loop.data(setting)
    picture, crop = _picture(ds.store), None if loop.crop is None else RandomResizedCrop(loop.crop)
    assert picture is not None
    blobs, field = _blobs(ds.store, picture), picture

    def work(first: int, ends: float) -> int:
        done, out = 0, _room(field, loop.crop)
        while time.perf_counter() < ends:
            number = (first + done * setting.threads) % len(blobs)
            if crop is None:
                decode_image(field, blobs[number], out)
            else:
                draw = Draw(0, done, number)
                decode_parts(field, blobs[number], lambda h, w, d=draw: [crop.cut(h, w, d)])[0].resized(out)  # type: ignore[misc]
            done += 1
        return done

    rates, before, started = [], used(), time.perf_counter()
    with ThreadPoolExecutor(setting.threads) as pool:
        for _ in range(loop.repeats):
            began = time.perf_counter()
            done = sum(pool.map(partial(work, ends=began + loop.seconds), range(setting.threads)))
            rates.append(done / (time.perf_counter() - began))
    seconds = time.perf_counter() - started
    return {"rates": rates, "seconds": seconds, "busy": min(1.0, (used() - before).cpu / seconds / usable_cpus())}


def _picture(store: Store) -> FieldSpec | None:
    return next((field for field in store.manifest.fields if field.kind == "image"), None)


def _blobs(store: Store, picture: FieldSpec) -> list[bytes]:
    mean = max(1, store.manifest.bytes // max(1, len(store)))
    count = max(1, min(len(store), _MOST, _HELD // mean))
    place = store.manifest.fields.index(picture)
    numbers = np.arange(count) * len(store) // count
    return [bytes(view) for (view,) in store.read(numbers, [place])]


def _room(field: FieldSpec, crop: int | None) -> npt.NDArray[Any] | None:
    """Where an image goes that has a known size; None where each has its own."""
    shape = (crop, crop, field.maximum[-1]) if crop is not None else field.shape
    return None if None in shape else np.empty([side or 0 for side in shape], field.dtype)


class _Idle:
    """Stands for a reader that has read its batch already."""

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self._rest: dict[str, Any] | None = None
        self.view, self.arrays, self.listed, self.finish = reader.view, reader.arrays, reader.listed, reader.finish

    def fill(self, *asked: Any) -> dict[str, Any]:
        """What does not lie in the arrays; these are filled once."""
        if self._rest is None:
            self._rest = self._reader.fill(*asked)
        return self._rest


class _Handed(IterableDataset[Any]):
    """Batches that take their worker no work."""

    def __init__(self, reader: BatchReader, size: int) -> None:
        self.reader, self.size = reader, size

    def __iter__(self) -> Iterator[Any]:
        sender, batch = Sender(_Idle(self.reader), "ring", plain=False), None  # type: ignore[arg-type]
        numbers = np.arange(self.size) % len(self.reader.store)
        while True:
            sent = sender.send(numbers, 0, {})
            if sent is None:
                batch = batch or self.reader.read(numbers, 0)
            yield sent if sent is not None else batch


def handover(loop: Loop, setting: Setting) -> dict[str, Any]:
    """Batches of the loop's shape, from workers that do nothing else, to a loop that does nothing with them."""
    store: Any = loop.data(setting).store
    read = store if loop.seq_len is None else SequenceStore(store, loop.seq_len)
    view = View(decode=loop.decode, crop=None if loop.crop is None else RandomResizedCrop(loop.crop))
    handed = _Handed(BatchReader(read, view, 0), loop.batch_size)
    batches = DataLoader(handed, batch_size=None, num_workers=setting.workers, collate_fn=_as_it_is)
    meter = Meter(loop.seconds, loop.repeats, lambda _: loop.batch_size, ahead=2 * setting.workers * setting.prefetch)
    with suppress(Finished):
        for _ in meter.epoch(batches):
            pass
    sizes = [math.prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in handed.reader.arrays(loop.batch_size)]
    return meter.found(0.0) | {"bytes": sum(sizes) / loop.batch_size}


def _as_it_is(batch: Any) -> Any:
    return batch


class _Files(Dataset[Any]):
    """A folder of images, as a training script reads it: opened, decoded in full, resized, cut."""

    def __init__(self, files: Sequence[Path], mode: str, size: tuple[int, int] | None, *, cropped: bool) -> None:
        self._files, self._mode, self._size, self._cropped = files, mode, size, cropped

    def __len__(self) -> int:
        return len(self._files)

    def _opened(self, number: int) -> Image.Image:
        """An image; in place of one that cannot be opened the next that can."""
        for place in range(number, number + _TRIES):
            with suppress(*_BROKEN), Image.open(self._files[place % len(self._files)]) as opened:
                return ImageOps.exif_transpose(opened).convert(self._mode)
        raise SourceError(f"--raw: {_TRIES} files like {str(self._files[number])!r} cannot be opened as images")

    def __getitem__(self, number: int) -> Any:
        image = self._opened(number)
        if self._size is None:
            return np.array(image)
        height, width = self._size
        if self._cropped:
            cut = RandomResizedCrop(height).cut(image.height, image.width, Draw(0, 0, number))
            box = (cut.left, cut.top, cut.left + cut.width, cut.top + cut.height)
            return np.array(image.resize((width, height), Image.Resampling.BILINEAR, box))
        return np.array(ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR))


_BROKEN = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
"""What Pillow raises for files that it cannot open."""


def raw(loop: Loop, setting: Setting, folder: str, known: int | None) -> dict[str, Any]:
    """The raw folder through a plain DataLoader: Pillow, full decoding, resized to what the store has.

    Args:
        loop: of the store; `cold` drops the files from memory first and reads each once at most.
        setting: workers.
        folder: of the images.
        known: of so many of them, which a cold pass has just read; None takes all.

    Raises:
        SourceError: it holds none.
    """
    Image.MAX_IMAGE_PIXELS = None
    files = raw_files(folder)[:known]
    picture = _picture(loop.data(setting).store)
    assert picture is not None
    height, width = picture.shape[:2]
    size = (loop.crop, loop.crop) if loop.crop is not None else (height, width) if height and width else None
    data = _Files(files, "L" if picture.maximum[-1] == 1 else "RGB", size, cropped=loop.crop is not None)
    batches = DataLoader(
        data,
        loop.batch_size,
        shuffle=not loop.cold,  # these are in no order already
        num_workers=setting.workers,
        collate_fn=None if size else list,
        persistent_workers=setting.workers > 0,
    )
    if loop.cold:
        forget(files)
    meter = Meter(
        loop.seconds,
        loop.repeats,
        len,
        ahead=None if loop.cold else 2 * setting.workers * setting.prefetch,
        disk=files[0],
    )
    with suppress(Finished):
        while True:
            for _ in meter.epoch(batches):
                pass
            if loop.cold:
                break
    mean = sum(path.stat().st_size for path in files) / len(files)
    return meter.found(mean) | {"bytes": mean}


def raw_files(folder: str) -> list[Path]:
    """Images of a folder, in an order of their own.

    Raises:
        SourceError: it holds none.
    """
    found = [
        Path(root) / name
        for root, _, names in os.walk(folder)
        for name in names
        if Path(name).suffix.lower() in EXTENSIONS and not name.startswith(".")
    ]
    if not found:
        raise SourceError(f"--raw {folder!r} holds no images as files: give the folder that the store was made from")
    random.Random(0).shuffle(found)  # noqa: S311 - no secret
    return found


STAGES: dict[str, Callable[..., dict[str, Any]]] = {
    "limits": limits,
    "decode": decode,
    "handover": handover,
    "raw": raw,
}
"""What `packer.measure.trial` can measure beside a whole loop."""
