"""How a build is run; none of it shows in the bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packer.runners import RUNNERS
from packer_reader.errors import UsageError

if TYPE_CHECKING:
    from packer.drive import Watcher

__all__ = ["Job", "Silent"]


class Silent:
    """A watcher that draws nothing."""

    def begin(self, what: str, total: int) -> None:
        """Nothing."""

    def advance(self, samples: int, source_bytes: int, skipped: int) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """How a build is run.

    Raises:
        UsageError: naming the option that cannot be used.
    """

    workers: int | None = None
    """Processes; None takes what this job may use of the machine."""
    runner: str = "processes"
    source_type: str | None = None
    """None detects it."""
    fields: tuple[str, ...] = ()
    """`NAME=KIND:COLUMN` of a list: which of its columns are stored, as what."""
    classes: str | None = None
    """A store, or a file with a class a line: these classes keep their index, others come behind them."""
    reuse: str | None = None
    """An earlier store of the same recipe, to copy from what has not changed."""
    tmp: str | None = None
    """Folder for what is under way; beside the target when left out."""
    gather: bool | None = None
    """Of text: read the source once from end to end and lay documents together in the stored order, under way; None
    does so where reading at places is slow and memory cannot hold it. Unshuffled text is read in order anyway."""
    resume: bool = True
    """Go on with an interrupted build of the same recipe and source."""
    overwrite: bool = False
    """Replace a store that we wrote."""
    stop_on_error: bool = False
    """Fail at the first sample that cannot be converted."""
    watcher: Watcher = field(default_factory=Silent)

    def __post_init__(self) -> None:
        if self.workers is not None and not 1 <= self.workers <= 1024:
            raise UsageError(f"--workers is {self.workers!r}, it must be a whole number from 1 to 1024")
        if self.runner not in RUNNERS:
            raise UsageError(f"--runner is {self.runner!r}, it must be one of {', '.join(RUNNERS)}")
