"""What this process and all below it have used so far, as the system counts it: CPU, memory, reads of the disk."""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Memory", "Used", "used"]

_OWN = re.compile(r"^Pss_(?:Anon|Shmem): +([0-9]+) kB$", re.MULTILINE)
_LOOK, _PAUSE = 0.1, 100
"""Seconds between two looks at the memory, and times that a look took: the system goes through all mapped pages for
one, and looking each tenth of a second made loops over large batches up to a tenth slower on two CPUs."""
_SECTOR = 512
_MAJOR, _CPU = (9, 10), (11, 12, 13, 14)
"""Fields of /proc/PID/stat behind the name: major faults and CPU time, of itself and of children that have ended."""


@dataclass(frozen=True)
class Used:
    """Counts up to now; the difference of two is what lies between."""

    cpu: float
    """Seconds."""
    read: int
    """Bytes that came from storage for these processes."""
    faults: int
    """Major faults: pages of mapped files that had to be read first."""
    requests: int
    """Reads that the disk was asked for, by anyone; 0 where the system does not say."""
    requested: int
    """Bytes of these."""

    def __sub__(self, other: Used) -> Used:
        """What lies between."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Used(*(max(0, mine - theirs) for mine, theirs in pairs))


def used(path: Path | None = None) -> Used:
    """The counts of now.

    Args:
        path: a file on the disk whose reads are counted; None counts none.
    """
    seconds, read, faults = 0.0, 0, 0
    for process in _family():
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            seconds += sum(int(fields[place]) for place in _CPU) / os.sysconf("SC_CLK_TCK")
            faults += sum(int(fields[place]) for place in _MAJOR)
            found = re.search(r"^read_bytes: ([0-9]+)$", Path(f"/proc/{process}/io").read_text(), re.MULTILINE)
            read += int(found[1]) if found else 0
    requests, requested = _disk(path) if path is not None else (0, 0)
    return Used(seconds, read, faults, requests, requested)


def _disk(path: Path) -> tuple[int, int]:
    """Reads and bytes of the disk that a file lies on; see the kernel's Documentation/block/stat.rst."""
    with suppress(OSError, ValueError, IndexError):
        device = path.stat().st_dev
        counts = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
        return int(counts[0]), int(counts[2]) * _SECTOR
    return 0, 0


def _family() -> list[int]:
    """This process and all below it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    family = [os.getpid()]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family


class Memory:
    """Looks at the memory of all processes while a loop runs: what is theirs alone, or shared memory."""

    def __init__(self) -> None:
        self._before = self._now()
        self.peak = 0
        """Bytes above what there was in the beginning."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def begin(self) -> None:
        """Look from now on."""
        self._thread.start()

    def end(self) -> None:
        """Look once more, and no more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
            self.peak = max(self.peak, self._now() - self._before)

    def _watch(self) -> None:
        pause = _LOOK
        while not self._ended.wait(pause):
            began = time.perf_counter()
            self.peak = max(self.peak, self._now() - self._before)
            pause = max(_LOOK, _PAUSE * (time.perf_counter() - began))

    @staticmethod
    def _now() -> int:
        total = 0
        for process in _family():
            with suppress(OSError):
                text = Path(f"/proc/{process}/smaps_rollup").read_text()
                total += sum(int(one) << 10 for one in _OWN.findall(text))
        return total
