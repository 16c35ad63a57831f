"""What moves through the builder: a ref is listed, read into a sample, and stored as one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Problem", "RawSample", "Ref"]


@dataclass(frozen=True, slots=True)
class Ref:
    """One sample of the source that has been listed but not read."""

    name: str
    """Path relative to the source, with `/`; undecodable bytes as surrogate escapes."""
    size: int
    """Bytes of its file; 0 where that is not known before it is read."""
    mtime_ns: int
    """Modification time of its file, or of the archive that it lies in, in nanoseconds."""
    label: int
    """Class index; -1 without classes."""
    source: int = 0
    """Which of the sources it comes from."""
    prefix: int = 0
    """Bytes of the name that are none of its path, put before it to tell it from another source's."""
    outer: int = 0
    """Bytes of the path that lead to the archive file it lies in; 0 when that is the source itself."""
    offset: int = -1
    """First byte in the archive file; -1 for a file of its own."""
    packed: int = 0
    """Bytes there when they are deflated, 0 when they are stored as they are."""
    crc: int = -1
    """CRC-32 of the content, where an archive has one."""
    place: int = 0
    """Its number among the refs."""
    extra: bytes = b""
    """What the source notes for itself: JSON of other files and values of the sample."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What an earlier store made of a sample: stored again as it is, where the recipe changes nothing."""

    codec: str
    channels: int
    dtype: str
    dropped: tuple[float, float]
    """`min_box_size` and `min_visibility` that its boxes were dropped under."""
    image: memoryview
    crc: int
    """CRC-32 of the image."""
    size: tuple[int, int]
    """Height and width."""
    moments: tuple[int, ...]
    source_codec: int
    source_size: int
    source_hash: bytes
    blobs: tuple[memoryview, ...]
    """Of the other fields, in stored order."""
    columns: tuple[float, ...]
    """Of those that have one."""


@dataclass(frozen=True, slots=True)
class RawSample:
    """One sample as the source holds it."""

    ref: Ref
    image: Any
    """The encoded picture (bytes; of a store a view of it), or its pixels, uint8 or uint16 (h, w) or (h, w, c)."""
    label: int
    """Class index; -1 without a label."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Values of the other fields, by name."""
    ready: Ready | None = None
    """Set where it comes from a store."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A sample that is not in the store, and why: a line of errors.jsonl."""

    name: str
    failure: str
    """The failure class, such as `truncated`."""
    reason: str
    key: int = -1
    """The hole it leaves in the stored order; -1 when it was refused while listing."""
    split: str | None = None
    """The split it would have been in, where listing knows it."""

    def to_json(self) -> dict[str, object]:
        """The line's object; without a key when there is none."""
        line: dict[str, object] = {"name": self.name, "class": self.failure, "reason": self.reason}
        return line | ({"key": self.key} if self.key >= 0 else {})
