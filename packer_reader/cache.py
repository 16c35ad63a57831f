"""`cache="decoded"`: the images of a store in memory as pixels, once per machine, for all its workers and ranks.

They lie in an anonymous file (memfd), so nothing is left behind when the last process that uses it is gone, however it
ended. A note in the temporary folder, held under a lock while one process decodes, says where the others find it:
`/proc/PID/fd/N` of a process that has it open.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import tempfile
import weakref
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from packer_reader.batch import BatchReader
from packer_reader.decode import Part
from packer_reader.errors import BatchError, StoreError, UsageError
from packer_reader.machine import free_memory, usable_cpus
from packer_reader.sizes import format_bytes
from packer_reader.view import View
from packer_reader.warm import progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from packer_reader.crops import Cut
    from packer_reader.fill import Encoded, Threads
    from packer_reader.format.fields import FieldSpec
    from packer_reader.skipping import OnError
    from packer_reader.stores.base import Store

__all__ = ["Cache", "Cached", "cached_pixels"]

Array = npt.NDArray[Any]
Cache = Literal["decoded"]

_AT_ONCE = 256
"""Images decoded between two steps of the progress bar."""


class Cached:
    """The decoded images of one field; a pixel source. A child that was not forked opens the file anew."""

    read = False

    def __init__(self, file: int, shape: tuple[int, ...], dtype: str) -> None:
        """Take the descriptor of a filled file: an array of this dtype and shape, (n, h, w, c)."""
        self._file, self._shape, self._dtype = file, shape, dtype
        found = os.fstat(file)
        self._identity = found.st_dev, found.st_ino
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        mapped = mmap.mmap(file, size, access=mmap.ACCESS_READ)
        self._images: Array = np.frombuffer(mapped, dtype).reshape(shape)
        weakref.finalize(self, os.close, file)

    @property
    def nbytes(self) -> int:
        """Bytes of all images."""
        return self._images.nbytes

    @property
    def note(self) -> dict[str, Any]:
        """Where another process finds it, as long as this one lives."""
        return {"pid": os.getpid(), "file": self._file, "identity": self._identity}

    def __reduce__(self) -> tuple[Any, ...]:
        return _sent, (self.note, self._shape, self._dtype)

    def whole(self, encoded: Encoded, place: int, out: Array | None = None) -> Array:
        """A copy."""
        image: Array = self._images[encoded.numbers[place]]
        if out is None:
            return image.copy()
        np.copyto(out, image)
        return out

    def parts(self, encoded: Encoded, place: int, cut: Callable[[int, int], Sequence[Cut]]) -> list[Part]:
        """Views."""
        image = self._images[encoded.numbers[place]]
        size = image.shape[0], image.shape[1]
        return [Part(one.inside(image), None, one, size) for one in cut(*size)]

    def all(self, encoded: Encoded, out: Array, threads: Threads) -> bool:
        """Copies."""
        numbers = encoded.numbers.tolist()
        threads.run(lambda place: np.copyto(out[place], self._images[numbers[place]]), len(numbers))
        return True


def cached_pixels(cache: Cache | None, store: Store, view: View, on_error: OnError) -> dict[str, Cached]:
    """The decoded images of a view, by field: found where another process of this machine has them, or made.

    Raises:
        BatchError: images of a field differ in size.
        UsageError: there is no such cache, or not enough free memory for it, or it makes no sense here.
        StoreError: an image is damaged.
    """
    if cache is None:
        return {}
    if cache != "decoded":
        raise UsageError(f"cache is {cache!r}, it must be 'decoded' or None")
    if on_error == "skip":
        raise UsageError('cache="decoded" decodes all images beforehand, so none can be skipped: leave on_error out')
    if view.decode == "bytes":
        raise UsageError('cache="decoded" keeps pixels, decode="bytes" gives none: leave one out')
    fields = [store.manifest.fields[place] for place in view.chosen(store.manifest)]
    fields = [field for field in fields if field.kind == "image"]
    for field in fields:
        if None in field.shape:
            raise BatchError(
                f'cache="decoded" needs images of one size, {store!r} has several: build with --fit crop, or leave it '
                "out"
            )
    return {field.name: _one(store, field) for field in fields}


def _one(store: Store, field: FieldSpec) -> Cached:
    shape = (len(store), *(side for side in field.shape if side is not None))
    with _notes(store, field) as (path, notes):
        alive = []
        for note in notes:
            try:
                alive.append((note, _found(note, shape, field.dtype)))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # that process has ended
        cached = alive[0][1] if alive else _made(store, field, shape)
        path.write_text(json.dumps([*(note for note, _ in alive), cached.note]))
        return cached


@contextmanager
def _notes(store: Store, field: FieldSpec) -> Iterator[tuple[Path, list[Any]]]:
    """The note's file and what is in it, locked: whoever comes while one process decodes waits for it.

    Raises:
        UsageError: it cannot be written.
    """
    name = f"packer-cache-{os.getuid()}-{store.manifest.content_digest[:24]}-{field.name}"
    path = Path(tempfile.gettempdir()) / name
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(file).st_uid != os.getuid():
                raise PermissionError(errno.EPERM, "it belongs to somebody else")
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                notes = json.loads(path.read_text() or "[]")
            except ValueError:
                notes = []
            yield path, notes if isinstance(notes, list) else []
        finally:
            os.close(file)
    except OSError as error:
        raise UsageError(
            f'cache="decoded": {str(path)!r} cannot be used, or there is no memory ({error.strerror}): set TMPDIR, or '
            "leave it out"
        ) from None


def _found(note: dict[str, Any], shape: tuple[int, ...], dtype: str) -> Cached:
    """What another process has open.

    Raises:
        OSError: it is gone.
        ValueError: its descriptor means another file by now.
    """
    file = os.open(f"/proc/{int(note['pid'])}/fd/{int(note['file'])}", os.O_RDONLY | os.O_CLOEXEC)
    found = os.fstat(file)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if [found.st_dev, found.st_ino] != list(note["identity"]) or found.st_size != size:
        os.close(file)
        raise ValueError("another file by now")
    return Cached(file, shape, dtype)


def _sent(note: dict[str, Any], shape: tuple[int, ...], dtype: str) -> Cached:
    """What a data set that was pickled has.

    Raises:
        StoreError: the process that pickled it has ended.
    """
    try:
        return _found(note, shape, dtype)
    except (OSError, ValueError):
        raise StoreError(
            f"the decoded images of process {note['pid']} are gone with it: make the StreamDataset anew here instead "
            "of unpickling it"
        ) from None


def _made(store: Store, field: FieldSpec, shape: tuple[int, ...]) -> Cached:
    size, free = int(np.prod(shape)) * np.dtype(field.dtype).itemsize, free_memory()
    if size > free:
        raise UsageError(
            f'cache="decoded" needs {format_bytes(size)} for {shape[0]:,} images, {format_bytes(free)} are free: leave '
            "it out, or build with a smaller --resize"
        )
    file = os.memfd_create("packer-decoded", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(file, 0, size)
        _fill(store, field, np.frombuffer(mmap.mmap(file, size), field.dtype).reshape(shape))
    except BaseException:
        os.close(file)
        raise
    return Cached(file, shape, field.dtype)


def _fill(store: Store, field: FieldSpec, images: Array) -> None:
    reader = BatchReader(store, View(decode="numpy", fields=(field.name,)), 0, threads=usable_cpus())
    with progress_bar(f"decoding {field.name}", len(images), "images") as step:
        for first in range(0, len(images), _AT_ONCE):
            numbers = np.arange(first, min(first + _AT_ONCE, len(images)))
            reader.announce(numbers)
            reader.fill(numbers, 0, {field.name: images[first : first + _AT_ONCE]})
            step(len(numbers))
