"""The folder beside the target where a build happens, and what must agree for it to be resumed."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, Self

from packer.output.lock import Lock
from packer_reader.errors import ResumeError, SourceError, UsageError, os_error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Staging"]


class Staging:
    """A locked working folder `.NAME.packing`; a context manager.

    It is removed when it ends without anything worth resuming, or after publication; otherwise it stays.
    """

    def __init__(self, target: Path, *, resume: bool) -> None:
        """Name the folder for a target; `resume=False` will empty it."""
        self.path = target.parent / f".{target.name}.packing"
        self._target, self._resume = target, resume
        self._lock = Lock(self.path / "lock", target)
        self.published = False
        """Set when the store has its name: then nothing here is worth keeping."""

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            if not self._resume:
                self.clear()
        except OSError as error:
            raise os_error(error, "creating", self.path) from None
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        # A source or an option that has to change first leaves nothing to go on with.
        done = self.published or not self.resumable or isinstance(error, SourceError | UsageError)
        if done:
            self.clear()
        self._lock.release()
        if done:
            shutil.rmtree(self.path, ignore_errors=True)

    def clear(self) -> None:
        """Remove everything but the lock."""
        for entry in self.path.iterdir():
            if entry.name == "lock":
                continue
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    @property
    def store(self) -> Path:
        """The folder that will become the target."""
        return self.path / "store"

    @property
    def refs(self) -> Path:
        """The folder of the ref columns."""
        return self.path / "refs"

    def work(self, split: str | None) -> Path:
        """The working folder of one split."""
        return self.path / "work" / (split or "all")

    @property
    def resumable(self) -> bool:
        """Whether a unit has been finished and not yet published."""
        return any(self.path.glob("work/*/journal.jsonl"))

    def agree(self, identity: Mapping[str, Any]) -> None:
        """Note what this build is, or check that the interrupted one was the same.

        Args:
            identity: recipe, listing digest and versions, as JSON.

        Raises:
            ResumeError: naming what differs.
        """
        path = self.path / "job.json"
        try:
            earlier = json.loads(path.read_text())
        except (OSError, ValueError):
            earlier = None
        if earlier is None or not self.resumable:
            path.write_text(json.dumps(identity, sort_keys=True))
            return
        differences = _differences(earlier, json.loads(json.dumps(identity)))
        if differences:
            raise ResumeError(
                f"an interrupted build of {str(self._target)!r} differs in {'; '.join(differences)}: repeat the "
                f"earlier command to finish it, or give --no-resume to start over"
            )


def _differences(earlier: Any, now: Any, place: str = "") -> list[str]:
    if isinstance(earlier, dict) and isinstance(now, dict):
        names = sorted(earlier.keys() | now.keys())
        return [d for n in names for d in _differences(earlier.get(n), now.get(n), f"{place} {n}".strip())]
    if earlier == now:
        return []
    if place == "listing":
        return ["the source's files (names, sizes or times changed)"]
    return [f"{place} (was {earlier!r}, is {now!r})"]
