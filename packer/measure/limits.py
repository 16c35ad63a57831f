"""What this machine can do at best: copying memory, reading files that it does not hold, decoding JPEGs."""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import cv2
import numpy as np
import simplejpeg

from packer_reader.machine import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

__all__ = ["copy_rate", "decode_rate", "disk_rate", "forget"]

_COPIED = 64 << 20
"""Bytes: more than any cache holds."""
_READ = 1 << 22


def forget(files: Iterable[Path]) -> None:
    """Let the system drop what it holds of files: whatever is read of them next comes from the disk."""
    for path in files:
        with suppress(OSError), path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_rate(files: Sequence[Path], seconds: float) -> float:
    """Bytes a second of files read from end to end, the next ones announced; 0.0 when there is nothing to read.

    Args:
        files: dropped from memory first.
        seconds: about so long.
    """
    forget(files)
    buffer, read, began = bytearray(_READ), 0, time.perf_counter()
    for place, path in enumerate(files):
        for near in files[place : place + 8]:
            with suppress(OSError), near.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 1 << 24, os.POSIX_FADV_WILLNEED)
        with suppress(OSError), path.open("rb", buffering=0) as file:
            while (got := file.readinto(buffer)) and time.perf_counter() - began < seconds:
                read += got
        if time.perf_counter() - began >= seconds:
            break
    return read / (time.perf_counter() - began)


def copy_rate() -> float:
    """Bytes a second that one thread copies within memory."""
    one, other = np.ones(_COPIED, np.uint8), np.ones(_COPIED, np.uint8)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        other[:] = one
        times.append(time.perf_counter() - began)
    return _COPIED / statistics.median(times)


def decode_rate(blobs: Sequence[bytes], codec: str, seconds: float) -> float:
    """Images a second, decoded by the bare library on all CPUs, each thread into memory of its own.

    Args:
        blobs: encoded images.
        codec: `jpg` by simplejpeg; `png` and `webp` by OpenCV.
        seconds: about so long.
    """
    threads = usable_cpus()

    def loop(first: int) -> int:
        decode, done, ends = _decoder(codec), 0, began + seconds
        while time.perf_counter() < ends:
            decode(blobs[(first + done * threads) % len(blobs)])
            done += 1
        return done

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(loop, range(threads)))
    return done / (time.perf_counter() - began)


def _decoder(codec: str) -> Callable[[bytes], object]:
    if codec != "jpg":
        return lambda blob: cv2.imdecode(np.frombuffer(blob, np.uint8), cv2.IMREAD_UNCHANGED)
    slot = np.empty(0, np.uint8)

    def decode(blob: bytes) -> object:
        nonlocal slot
        try:
            return simplejpeg.decode_jpeg(blob, "RGB", buffer=slot)
        except ValueError:
            height, width, _, _ = simplejpeg.decode_jpeg_header(blob)
            slot = np.empty(height * width * 3, np.uint8)
            return simplejpeg.decode_jpeg(blob, "RGB", buffer=slot)

    return decode
