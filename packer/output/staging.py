"""The folder beside the target where a build happens, and what must agree for it to be resumed."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from packer.output.lock import Lock
from packer.whereabouts import was_cut_off
from packer_reader.errors import ResumeError, SourceError, UsageError, os_error
from packer_reader.format.names import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Staging"]


class Staging:
    """A locked working folder `.NAME.packing`; a context manager.

    It is removed when it ends without anything worth resuming, or after publication; otherwise it stays.
    """

    def __init__(self, target: Path, *, resume: bool, tmp: Path | None = None) -> None:
        """Name the folder for a target; `resume=False` will empty it, `tmp` takes the fragments."""
        self.path = target.parent / f".{target.name}.packing"
        self._tmp = tmp.absolute() if tmp else None
        self._fragments: Path | None = None
        """Where fragments lie, when not here; noted in the file `tmp`, since the next run may name another place."""
        self._target, self._resume = target, resume
        self._lock = Lock(self.path / "lock", target)
        self._had_work = False
        self.cut_off = False
        """Whether an earlier run was killed in the middle of a sample."""
        self.published = False
        """Set when the store has its name: then nothing here is worth keeping."""

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except OSError as error:
            raise os_error(error, "creating", self.path) from None
        try:
            self._remove_remains()
            self._recover()
            self.cut_off = any(
                was_cut_off(folder) for deep in ("*", "*/*") for folder in self.path.glob(f"work/{deep}")
            )
            if not self._resume:
                self.clear()
            self._choose_fragments()
        except BaseException as error:
            self._lock.release()
            if isinstance(error, OSError):
                raise os_error(error, "clearing", self.path) from None
            raise
        self._had_work = self.resumable
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        # A source or an option that has to change first leaves nothing to go on with, but takes no work away either.
        slip = isinstance(error, SourceError | UsageError) and not self._had_work
        if not (self.published or slip or not self.resumable):
            self._lock.release()
            return
        # Renamed first, lock and all: a build that begins now finds nothing, rather than half of this.
        gone = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        self._lock.stop()
        try:
            self.path.rename(gone)
        except OSError:
            gone = self.path
        _remove(gone)

    def _choose_fragments(self) -> None:
        """Use the place of the run before, unless another one is asked for; nothing is left at the old one."""
        note = self.path / "tmp"
        before = Path(os.fsdecode(note.read_bytes())) if note.exists() else None
        if before is not None and (self._tmp is None or before.parent != self._tmp):
            shutil.rmtree(before, ignore_errors=True)
            note.unlink()
            before = None
        self._fragments = before
        if before is None and self._tmp is not None:
            self._fragments = self._tmp / f"packer-{os.urandom(8).hex()}"
            note.write_bytes(os.fsencode(self._fragments))

    def _remove_remains(self) -> None:
        """Remove what builds that were killed while they cleaned up have left beside this folder."""
        for remains in self.path.parent.glob(f"{glob.escape(self.path.name)}.[0-9]*"):
            if not Path(f"/proc/{remains.suffix[1:]}").exists():
                _remove(remains)

    def _recover(self) -> None:
        """Find out how far an earlier publication came: the mark says what was about to get the target's name."""
        if not self._mark.exists():
            return
        if self._ready.exists() and _fingerprint(self._ready) == self._mark.read_text():
            self._ready.rename(self.store)
        if self.store.exists():
            self._mark.unlink()
        else:
            self.clear()  # published; what is left is the old store, or nothing

    def make_ready(self) -> Path:
        """Mark the finished store as about to be published, and move it where a resumed build would not write."""
        with self._mark.open("w") as mark:
            mark.write(_fingerprint(self.store))
            mark.flush()
            os.fsync(mark.fileno())
        self.store.rename(self._ready)
        return self._ready

    @property
    def _mark(self) -> Path:
        return self.path / "publishing"

    @property
    def _ready(self) -> Path:
        return self.path / "ready"

    def clear(self) -> None:
        """Remove everything but the lock, and the note of where fragments lie."""
        for entry in self.path.iterdir():
            if entry.name in {"lock", "tmp"}:
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

    def work(self, name: str) -> Path:
        """The working folder of one store, made when it is not there."""
        return _made(self.path / "work" / (name or "all"))

    def units(self, name: str) -> Path:
        """The folder of the fragments of one store, made when it is not there."""
        return _made(self._fragments / (name or "all") if self._fragments else self.work(name) / "units")

    @property
    def resumable(self) -> bool:
        """Whether a unit has been finished and not yet published."""
        return any(any(self.path.glob(f"work/{deep}/journal.jsonl")) for deep in ("*", "*/*"))

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
            # Nothing has been finished here, or nobody knows any more what for.
            for leftover in (self.store, self.path / "work"):
                shutil.rmtree(leftover, ignore_errors=True)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(identity, sort_keys=True))
            partial.replace(path)
            return
        differences = _differences(earlier, json.loads(json.dumps(identity)))
        if differences:
            raise ResumeError(
                f"an interrupted build of {str(self._target)!r} differs in {'; '.join(differences)}: repeat the "
                f"earlier command to finish it, or give --no-resume to start over"
            )


def _remove(staging: Path) -> None:
    """Remove a staging folder; first the fragments elsewhere, of which only its note tells."""
    note = staging / "tmp"
    if note.exists():
        shutil.rmtree(os.fsdecode(note.read_bytes()), ignore_errors=True)
    shutil.rmtree(staging, ignore_errors=True)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _fingerprint(folder: Path) -> str:
    """Which store, or which stores, a folder holds: a hash of their manifests."""
    digest = hashlib.sha256()
    for manifest in sorted(folder.rglob(MANIFEST)):
        digest.update(manifest.read_bytes())
    return digest.hexdigest()


def _differences(earlier: Any, now: Any, place: str = "") -> list[str]:
    if isinstance(earlier, dict) and isinstance(now, dict):
        names = sorted(earlier.keys() | now.keys())
        return [d for n in names for d in _differences(earlier.get(n), now.get(n), f"{place} {n}".strip())]
    if earlier == now:
        return []
    if place == "listing":
        return ["the source's files (names, sizes or times changed)"]
    if place == "classes":
        return ["the classes (--classes, or class folders that came or went)"]
    return [f"{place} (was {earlier!r}, is {now!r})"]
