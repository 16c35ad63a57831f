"""The seam of every source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence
    from pathlib import Path

    from packer.fields import Extra
    from packer.sample import Problem, RawSample, Ref
    from packer.sources.refs import RefWriter

__all__ = ["DocumentSource", "Expecting", "Listing", "SampleSource", "Source", "Spooling"]


@dataclass
class Listing:
    """What a scan found, apart from the refs themselves."""

    type: str
    """The source's type, as in `--from`."""
    reason: str
    """Why it was taken for that type."""
    classes: tuple[str, ...] | None
    """Class names by index; None without names."""
    labelled: bool
    """Whether samples have a label."""
    splits: tuple[str, ...]
    """Split names by number; empty when the source has none of its own."""
    found: int
    """Samples: refs and problems."""
    bytes: int
    """Of the files behind the refs."""
    digest: str
    """SHA-256 over names, sizes and times of the refs, and the problems."""
    suffixes: Counter[str]
    """Refs by lower-case extension."""
    ignored: Counter[str]
    """Files that are no samples, by extension."""
    extras: tuple[Extra, ...] = ()
    """Fields beside the image and its label, in stored order."""
    problems: list[Problem] = field(default_factory=list)
    """Samples refused while listing."""
    notices: list[str] = field(default_factory=list)
    """Sentences that a user should see."""


@runtime_checkable
class Expecting(Protocol):
    """A source that reads a unit's samples faster together."""

    def expect(self, refs: Sequence[Ref]) -> None:
        """These are read next."""


@runtime_checkable
class Spooling(Protocol):
    """A source that keeps samples in the staging folder while it is listed."""

    def spooled_at(self, path: Path) -> Source:
        """The same for workers: what was kept lies in this file, if there was anything."""


class Source(Protocol):
    """Raw data. Small and picklable: workers get a copy."""

    @property
    def type(self) -> str:
        """The name that `--from` takes."""

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """By source, what a name begins with that an earlier source has as well."""

    def scan(self, refs: RefWriter) -> Listing:
        """List every sample in sorted order.

        Raises:
            SourceError: the source cannot be listed, or holds nothing of its type.
        """


class SampleSource(Source, Protocol):
    """Of images and what belongs to them."""

    def read(self, ref: Ref) -> RawSample:
        """Read one sample.

        Raises:
            SampleError: vanished, unreadable, empty or changed since the scan.
        """


class DocumentSource(Source, Protocol):
    """Of text."""

    def document(self, ref: Ref) -> str:
        """Read one document.

        Raises:
            SampleError: vanished, unreadable, empty, no text, or too large.
        """
