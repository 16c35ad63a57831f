"""One setting, measured in a process of its own: `python -m packer.measure.trial` with JSON on standard input.

A fresh process, since what a loop leaves behind (mapped stores, caches, threads) would count for the next one.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from packer.measure.settings import Setting
from packer_reader import RandomResizedCrop, StreamDataset, loader
from packer_reader.errors import PackerError
from packer_reader.machine import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Loop", "main", "measure"]

_OWN = re.compile(r"^Pss_(?:Anon|Shmem): +([0-9]+) kB$", re.MULTILINE)
_LOOK = 0.1
"""Seconds between two looks at the memory."""


@dataclass(frozen=True)
class Loop:
    """The loop that is measured with each setting."""

    store: str
    split: str | None
    batch_size: int
    crop: int | None
    """Side of random crops; None reads whole samples."""
    seq_len: int | None
    step: float
    """Seconds of a training step, spent asleep, as a GPU leaves the CPU alone."""
    seconds: float
    """Of each repeat."""
    repeats: int

    def data(self, setting: Setting) -> StreamDataset:
        """Its data set.

        Raises:
            PackerError: the store cannot be read so.
        """
        crop = None if self.crop is None else RandomResizedCrop(self.crop)
        return StreamDataset(
            self.store,
            split=self.split,
            batch_size=self.batch_size,
            crop=crop,
            seq_len=self.seq_len,
            threads=setting.threads,
        )


def measure(loop: Loop, setting: Setting) -> dict[str, Any]:
    """Run a loop: what `Measured` holds, but for the setting and the prediction.

    What comes before the first repeat, and where an epoch turns over, is not counted.
    """
    ds = loop.data(setting)
    options: dict[str, Any] = {"num_workers": setting.workers, "pin_memory": setting.pin_memory}
    if setting.workers:
        options |= {"prefetch_factor": setting.prefetch, "multiprocessing_context": setting.start}
    clock, memory = time.perf_counter, _Memory()
    with memory:
        started, steps = clock(), _steps(loader(ds, **options))
        next(steps)
        first = clock() - started
        for _ in range(2 * setting.workers * setting.prefetch):  # what was read ahead in the meantime
            if clock() - started > first + loop.seconds:
                break
            next(steps)
        rates, waited, looped, samples, used, begun = list[float](), 0.0, 0.0, 0, _used(), clock()
        for _ in range(loop.repeats):
            count, spent = 0, 0.0
            while spent < loop.seconds:
                asked = clock()
                size, turned = next(steps)
                came = clock()
                if loop.step:
                    time.sleep(loop.step)
                samples += size
                if not turned:
                    count, waited, spent = count + size, waited + came - asked, spent + clock() - asked
            rates.append(count / spent)
            looped += spent
        wall, after = clock() - begun, _used()
    stored = samples * ds.store.manifest.bytes / max(1, len(ds.store))
    return {
        "rates": rates,
        "stalled": waited / looped,
        "busy": min(1.0, (after[0] - used[0]) / wall / usable_cpus()),
        "from_disk": min(1.0, (after[1] - used[1]) / max(1.0, stored)),
        "first": first,
        "peak": memory.peak,
    }


def _steps(batches: Iterable[Any]) -> Iterator[tuple[int, bool]]:
    """Samples of batch after batch, epoch after epoch, and whether it is the first of its epoch."""
    while True:
        for number, batch in enumerate(batches):
            yield len(next(iter(batch.values()))), number == 0


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


def _used() -> tuple[float, int]:
    """CPU seconds of all processes so far, and bytes that the disk gave them."""
    seconds, read = 0.0, 0
    for process in _family():
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            found = re.search(r"^read_bytes: ([0-9]+)$", Path(f"/proc/{process}/io").read_text(), re.MULTILINE)
            read += int(found[1]) if found else 0
    return seconds, read


class _Memory:
    """Looks at the memory of all processes while a loop runs: what is theirs alone, or shared memory."""

    def __init__(self) -> None:
        self._before = self._now()
        self.peak = 0
        """Bytes above what there was in the beginning."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK):
            self.peak = max(self.peak, self._now() - self._before)

    @staticmethod
    def _now() -> int:
        total = 0
        for process in _family():
            with suppress(OSError):
                text = Path(f"/proc/{process}/smaps_rollup").read_text()
                total += sum(int(one) << 10 for one in _OWN.findall(text))
        return total


def main() -> None:
    """Measure what standard input asks for; one JSON object on standard output, an error of ours as its `error`."""
    asked = json.load(sys.stdin)
    try:
        found = measure(Loop(**asked["loop"]), Setting(**asked["setting"]))
    except PackerError as error:
        found = {"error": str(error), "exit_code": error.exit_code}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
