"""Every error that the two packages raise on purpose.

    PackerError                    anything below; its text is one sentence with the next step        exit 1
    ├── UsageError (ValueError)    an option or argument cannot be used                                exit 2
    ├── SourceError                the raw data cannot be listed
    ├── SampleError                one sample cannot be converted: a failure class and a reason
    ├── OutputError                the target cannot be written
    │   └── ResumeError            an interrupted build there belongs to another job
    ├── WorkerError                a worker process died
    ├── StateError (ValueError)    a saved reading position belongs to other data or another order
    ├── BatchError (TypeError)     a data set is used in a way that would lose or garble samples
    ├── MissingError (ImportError) a library that only some stores or options need is not installed
    └── StoreError                 a store cannot be read                                              exit 4
        ├── NotAStoreError         there is no complete store at this path
        ├── VersionError           written by a newer format version
        ├── FormatError            a file breaks the specification; carries every problem found
        ├── DamageError            bytes differ from what was written
        └── NotFoundError (IndexError)  no such sample, field, split or column

Foreign exceptions are mapped where they enter: `os_error` for the file system, the two `lmdb.py` for LMDB, `decode`
for codecs.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = [
    "BatchError",
    "DamageError",
    "FormatError",
    "MissingError",
    "NotAStoreError",
    "NotFoundError",
    "OutputError",
    "PackerError",
    "ResumeError",
    "SampleError",
    "SourceError",
    "StateError",
    "StoreError",
    "UsageError",
    "VersionError",
    "WorkerError",
    "os_error",
]


class PackerError(Exception):
    """The root: catching it catches every failure that a user can cause."""

    exit_code = 1
    """What the commands return to the shell."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep message and attributes on the way from a worker process."""
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[PackerError], args: tuple[Any, ...], state: dict[str, Any]) -> PackerError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class UsageError(PackerError, ValueError):
    """An option or argument has a value that cannot be used."""

    exit_code = 2


class SourceError(PackerError):
    """The source is missing, empty, or not what it was taken for."""


class SampleError(PackerError):
    """One input sample cannot be converted; the others go on.

    Args:
        failure: the failure class, as listed in errors.jsonl (`truncated`, `too-large`, ...).
        reason: one sentence of our own, the same for the same bytes on every machine.
    """

    def __init__(self, failure: str, reason: str) -> None:
        super().__init__(reason)
        self.failure = failure
        self.reason = reason


class OutputError(PackerError):
    """The target exists already, overlaps the source, or cannot be written."""


class ResumeError(OutputError):
    """The interrupted build beside the target belongs to another recipe, source or version."""


class WorkerError(PackerError):
    """A worker process ended without an answer.

    Args:
        text: what happened.
        process: its number, where one process is meant.
    """

    def __init__(self, text: str, process: int = -1) -> None:
        super().__init__(text)
        self.process = process


class StateError(PackerError, ValueError):
    """A saved reading position does not fit this store, selection or order."""


class BatchError(PackerError, TypeError):
    """A data set is used in a way that would lose, repeat or nest samples."""


class MissingError(PackerError, ImportError):
    """An optional library is needed here and not installed; the text names what to install."""


class StoreError(PackerError):
    """A store cannot be read."""

    exit_code = 4


class NotAStoreError(StoreError):
    """Nothing, or only a part of a store, is at this path."""


class VersionError(StoreError):
    """The store follows a format version that this package does not know."""


class FormatError(StoreError):
    """A file breaks the format's specification.

    Args:
        what: the file or structure.
        problems: every problem found, each with its place.
    """

    def __init__(self, what: str, problems: Sequence[str]) -> None:
        super().__init__(f"{what}: {'; '.join(problems)} (copy the store again, or rebuild it)")
        self.what = what
        self.problems = tuple(problems)


class DamageError(StoreError):
    """Stored bytes are not the ones that were written."""

    sample: int | None = None
    """The sample number, where one sample is damaged."""


class NotFoundError(StoreError, IndexError):
    """There is no such sample, field, split or column in the store.

    An IndexError, since that is what ends a loop over a sequence.
    """


def os_error(error: OSError, doing: str, path: Path | str) -> OutputError:
    """The one-line form of a file system error while writing.

    Args:
        error: what the system said.
        doing: a gerund, such as `writing`.
        path: the file or folder concerned.
    """
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return OutputError(f"no space left while {doing} {str(path)!r}: make room and run the same command again")
    reason = error.strerror or type(error).__name__
    return OutputError(f"{reason} while {doing} {str(path)!r}: check the path and its permissions, then run again")
