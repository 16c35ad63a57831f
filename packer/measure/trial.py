"""One loop, measured in a process of its own: `python -m packer.measure.trial` with JSON on standard input.

A fresh process, since what a loop leaves behind (mapped stores, caches, threads) would count for the next one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from packer.measure.limits import forget
from packer.measure.meter import Finished, Meter
from packer.measure.settings import Setting
from packer_reader import RandomResizedCrop, StreamDataset, loader
from packer_reader.errors import BatchError, PackerError, UsageError, WorkerError
from packer_reader.sequences import SequenceStore
from packer_reader.stores.open import open_store
from packer_reader.warm import warm as read_all

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from packer_reader.view import Decode

__all__ = ["Loop", "What", "answer_of", "in_a_process", "main", "measure"]

_TRIAL = 60
"""Seconds that a trial may take beside its repeats: torch is loaded by each."""
_WAY_OUT = "free memory, or lower --batch-size"


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
    decode: Decode = "torch"
    cold: bool = False
    """Drop the store from memory first, and read it once at most, from the first batch on."""
    warm: bool = False
    """Read all of the store into memory first."""

    def data(self, setting: Setting) -> StreamDataset:
        """Its data set.

        Raises:
            PackerError: the store cannot be read so.
        """
        crop = None if self.crop is None else RandomResizedCrop(self.crop)
        try:
            return StreamDataset(
                self.store,
                split=self.split,
                batch_size=self.batch_size,
                crop=crop,
                seq_len=self.seq_len,
                decode=self.decode,
                threads=setting.threads,
            )
        except BatchError:
            if crop is None:
                raise UsageError(f"images of {self.store!r} differ in size: give --crop N, as training does") from None
            raise

    def sample_bytes(self) -> float:
        """Mean stored bytes of a sample, which with `seq_len` is a sequence."""
        store = open_store(self.store, self.split)
        samples = len(store) if self.seq_len is None else len(SequenceStore(store, self.seq_len))
        return store.manifest.bytes / max(1, samples)


def measure(loop: Loop, setting: Setting) -> dict[str, Any]:
    """Run a loop: what `Meter.found` says of it."""
    ds = loop.data(setting)
    store = ds.store
    options: dict[str, Any] = {"num_workers": setting.workers, "pin_memory": setting.pin_memory}
    if setting.workers:
        options |= {"prefetch_factor": setting.prefetch, "multiprocessing_context": setting.start}
    if loop.cold:
        forget(store.path / name for name in store.all_files())
    if loop.warm:
        read_all(store)
    ahead = None if loop.cold else 2 * setting.workers * setting.prefetch
    meter = Meter(loop.seconds, loop.repeats, _size, ahead=ahead, disk=store.path / "manifest.json")
    batches = loader(ds, **options)
    with suppress(Finished):
        while True:
            for _ in meter.epoch(batches):
                if loop.step:
                    time.sleep(loop.step)
            if loop.cold:
                break
    return meter.found(loop.sample_bytes())


def _size(batch: Any) -> int:
    return len(next(iter(batch.values())))


What = Literal["loop", "limits", "handover", "decode", "raw"]


def in_a_process(what: What, loop: Loop, setting: Setting, **more: Any) -> dict[str, Any]:
    """Measure in a process of its own.

    Args:
        what: `loop` is `measure`; the others are of `packer.measure.stages`.
        loop: its batches.
        setting: what it is run with.
        more: their other arguments.

    Raises:
        PackerError: what the process could not do.
        WorkerError: it ended by itself, or not at all.
    """
    asked = {"what": what, "loop": asdict(loop), "setting": asdict(setting), "more": more}
    command = [sys.executable, "-P", "-m", "packer.measure.trial"]  # whatever lies in this folder is not imported
    limit = _TRIAL + 10 * loop.repeats * (loop.seconds + loop.step)
    return answer_of(command, json.dumps(asked), f"a trial with {setting.words}", limit)


def answer_of(
    command: Sequence[str], asked: str, what: str, limit: float, *, answer: Path | None = None, way_out: str = _WAY_OUT
) -> dict[str, Any]:
    """What a measuring process says on standard output, or in a file.

    Args:
        command: that starts it.
        asked: its standard input.
        what: it is, in words.
        limit: seconds until it is given up.
        answer: the file; None for standard output.
        way_out: what to do when it fails.

    Raises:
        PackerError: what the process could not do.
        WorkerError: it ended by itself, or not at all.
    """
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
    ) as process:
        try:
            said, complaints = process.communicate(asked.encode(), limit)
        except subprocess.TimeoutExpired:
            raise WorkerError(f"{what} did not end in {limit:.0f} s: {way_out}") from None
        finally:  # with its workers, also when this process is interrupted
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        last = (complaints.decode(errors="replace").strip().splitlines() or ["no word"])[-1]
        raise WorkerError(f"{what} ended by itself ({last}): {way_out}")
    found: dict[str, Any] = json.loads(said if answer is None else answer.read_bytes())
    if "error" in found:
        error = PackerError(found["error"])
        error.exit_code = found["exit_code"]
        raise error
    return found


def main() -> None:
    """Measure what standard input asks for; one JSON object on standard output, an error of ours as its `error`."""
    asked = json.load(sys.stdin)
    loop, setting = Loop(**asked["loop"]), Setting(**asked["setting"])
    try:
        if asked["what"] == "loop":
            found = measure(loop, setting)
        else:
            from packer.measure.stages import STAGES  # noqa: PLC0415 - a loop needs none of it

            found = STAGES[asked["what"]](loop, setting, **asked["more"])
    except PackerError as error:
        found = {"error": str(error), "exit_code": error.exit_code}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
