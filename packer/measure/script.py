"""A user's own training, run with a setting and measured: `python -m packer.measure.script JSON`.

The program runs as it is, in this process. Its `StreamDataset` and its `DataLoader` over it (torch's own or
`packer_reader.loader`) get the setting's arguments in place of their own, and the first loop over batches is measured
from inside; when enough has been seen, the program ends.
"""

from __future__ import annotations

import inspect
import json
import re
import runpy
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from packer.measure.meter import Finished, Meter
from packer.measure.settings import Setting
from packer.measure.trial import answer_of
from packer_reader import StreamDataset
from packer_reader.errors import PackerError, UsageError
from packer_reader.machine import free_memory
from packer_reader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from packer.measure.trial import Loop

__all__ = ["LIMIT", "main", "measure_script", "program_of"]

LIMIT = 300.0
"""Seconds that a program may take beside its repeats, models to be loaded included."""


def program_of(command: str) -> list[str]:
    """A Python and what it runs: a file or `-m` and a module, and their arguments.

    Raises:
        UsageError: it is no Python program.
    """
    try:
        words = [word for place, word in enumerate(shlex.split(command)) if place == 0 or word != "-u"]
    except ValueError as error:
        raise UsageError(f"--script {command!r} is no command line ({error})") from None
    # A bare name means the Python that runs this, which has packer: nobody types the path of an environment twice.
    python = sys.executable if words and "/" not in words[0] else shutil.which(words[0]) if words else None
    starts = len(words) > 1 and (not words[1].startswith("-") or (words[1] == "-m" and len(words) > 2))
    if python is None or not re.fullmatch(r"python[0-9.]*", Path(words[0]).name) or not starts:
        raise UsageError(
            f"--script is {command!r}, it must be a Python program, such as 'python train.py' or 'python -m train'"
        )
    if words[1] != "-m" and not Path(words[1]).is_file():
        raise UsageError(f"--script: there is no program {words[1]!r}: check the path")
    return [python, *words[1:]]


def measure_script(program: Sequence[str], setting: Setting, loop: Loop, limit: float = LIMIT) -> dict[str, Any]:
    """Run a program with a setting: what `Meter.found` says, and `predicted` bytes of memory.

    Args:
        program: from `program_of`.
        setting: for its data set and loader.
        loop: the store that it must read, seconds of each repeat, and how many.
        limit: seconds that the program may take beside them.

    Returns:
        With `too_large`, the predicted bytes, and nothing else where these are over half of what is free.

    Raises:
        PackerError: the program reads no store, or ends with an error.
    """
    with tempfile.TemporaryDirectory(prefix="packer-tune-") as folder:
        answer = Path(folder) / "answer.json"
        store = str(open_store(loop.store, loop.split).path.resolve())
        asked: dict[str, Any] = {"setting": asdict(setting), "store": store, "answer": str(answer)}
        asked |= {"seconds": loop.seconds, "repeats": loop.repeats}
        command = [program[0], "-P", "-m", "packer.measure.script", json.dumps(asked), *program[1:]]
        limit += 10 * loop.repeats * loop.seconds
        what = f"the script with {setting.words}"
        return answer_of(command, "", what, limit, answer=answer, way_out="run it by itself to see why")


class _Trial:
    """The setting in force, and what is measured with it."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.setting, self._asked = Setting(**asked["setting"]), asked
        self.meter: Meter | None = None
        self.answer: dict[str, Any] = {}
        self._data: StreamDataset | None = None

    def put_in_force(self) -> None:
        """Change what data sets and loaders are made with from now on."""
        data_init, loader_init, loader_iter = StreamDataset.__init__, DataLoader.__init__, DataLoader.__iter__
        wanted, taken = inspect.signature(loader_init), self

        def new_data(self: StreamDataset, *arguments: Any, **options: Any) -> None:
            data_init(self, *arguments, **options | {"threads": taken.setting.threads})

        def new_loader(self: DataLoader[Any], *arguments: Any, **options: Any) -> None:
            given = wanted.bind(self, *arguments, **options).arguments
            if isinstance(given.get("dataset"), StreamDataset):
                given |= taken.options(given["dataset"], persistent=bool(given.get("persistent_workers")))
            loader_init(**given)

        def new_iter(self: DataLoader[Any]) -> Any:
            if not isinstance(self.dataset, StreamDataset):
                return loader_iter(self)
            return taken.watched(self, loader_iter(self))

        StreamDataset.__init__ = new_data  # type: ignore[method-assign]
        DataLoader.__init__ = new_loader  # type: ignore[method-assign]
        DataLoader.__iter__ = new_iter  # type: ignore[method-assign]

    def options(self, data: StreamDataset, *, persistent: bool) -> dict[str, Any]:
        """A loader's arguments by the setting."""
        one = self.setting
        found = {"num_workers": one.workers, "pin_memory": one.pin_memory, "persistent_workers": False}
        ahead: dict[str, Any] = {"prefetch_factor": None, "multiprocessing_context": None, "timeout": 0}
        if one.workers:
            ahead = {"prefetch_factor": one.prefetch, "multiprocessing_context": one.start}
        predicted, most = data.memory(one.workers, one.prefetch), free_memory() // 2
        if predicted > most:
            self.answer = {"too_large": predicted}
            raise Finished(0)
        return found | ahead | ({"persistent_workers": persistent} if one.workers else {})

    def watched(self, loader: DataLoader[Any], batches: Any) -> Iterator[Any]:
        """The batches of a loader; measured, where it is the first one that is read."""
        data = loader.dataset
        assert isinstance(data, StreamDataset)
        self._data = self._data or data
        if _what(data) != _what(self._data):
            return iter(batches)
        if str(data.store.path.resolve()) != self._asked["store"]:
            raise UsageError(f"it read {str(data.store.path)!r}, not the store that was named: name the one it reads")
        if self.meter is None:
            one, most = self.setting, data.batch_size or loader.batch_size or 1
            self.meter = Meter(
                self._asked["seconds"],
                self._asked["repeats"],
                lambda batch: _length(batch, most),
                ahead=2 * one.workers * one.prefetch,
                disk=data.store.path / "manifest.json",
            )
        return self.meter.epoch(batches)

    def found(self) -> dict[str, Any]:
        """What was measured."""
        if self.meter is None or self._data is None:
            said = "the script read no batch of a StreamDataset through a DataLoader or packer_reader.loader"
            return self.answer or {"error": f"{said}: give a training program that does", "exit_code": 2}
        manifest = self._data.store.manifest
        found = self.meter.found(manifest.bytes / max(1, manifest.samples))
        if not found["rates"]:
            return {"error": "the script's loop was too short to measure: give it more steps or epochs", "exit_code": 2}
        return found | {"predicted": self._data.memory(self.setting.workers, self.setting.prefetch)}


def _what(data: StreamDataset) -> tuple[object, ...]:
    """What two data sets have in common that a program makes anew each epoch."""
    return data.store.path, data.batch_size


def _length(batch: Any, most: int) -> int:
    """Samples of a batch in whatever form a program gives it; the largest number where that does not tell."""
    first = next(iter(batch.values()), batch) if isinstance(batch, Mapping) else batch
    first = first[0] if isinstance(first, list | tuple) and first else first
    return min(most, len(first)) if getattr(first, "shape", None) else most


def main() -> None:
    """Run the program of the command line; the answer goes to the file that the first argument names."""
    asked, program = json.loads(sys.argv[1]), sys.argv[2:]
    trial = _Trial(asked)
    trial.put_in_force()
    try:
        if program[0] == "-m":
            sys.argv = program[1:]
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = program
            sys.path.insert(0, str(Path(program[0]).resolve().parent))
            runpy.run_path(program[0], run_name="__main__")
    except Finished:
        pass
    except SystemExit as ended:
        if ended.code not in {None, 0}:
            raise
    except PackerError as error:
        trial.answer = {"error": f"the script ended with: {error}", "exit_code": error.exit_code}
        trial.meter = None
    Path(asked["answer"]).write_text(json.dumps(trial.found()))


if __name__ == "__main__":
    main()
