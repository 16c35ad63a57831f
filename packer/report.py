"""What came of a build."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packer_reader.format.manifest import Manifest

__all__ = ["Report", "make_report"]


@dataclass(frozen=True)
class Report:
    """What came of a build."""

    store: str
    found: int
    written: int
    skipped: int
    records: int
    bytes: int
    """Stored bytes of all fields."""
    shards: int
    seconds: float
    errors: dict[str, int]
    """Skipped samples by failure class."""
    reencoded: dict[str, int]
    """Samples stored in another codec, by `from>to`."""
    splits: dict[str, int]
    """Samples by split; empty without splits."""
    workers: int
    manifests: tuple[Manifest, ...] = field(repr=False, default=())

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        rate = self.written / self.seconds if self.seconds else 0.0
        return {
            "store": self.store,
            "found": self.found,
            "written": self.written,
            "skipped": self.skipped,
            "samples": self.written,
            "records": self.records,
            "bytes": self.bytes,
            "shards": self.shards,
            "seconds": round(self.seconds, 3),
            "samples_per_s": round(rate, 1),
            "errors": self.errors,
            "reencoded": self.reencoded,
            "splits": self.splits,
            "workers": self.workers,
        }


def make_report(store: str, manifests: list[Manifest], workers: int, seconds: float) -> Report:
    """The sum over the stores of a build."""

    def total(name: str) -> Counter[str]:
        counted: Counter[str] = Counter()
        for manifest in manifests:
            counted.update(getattr(manifest, name))
        return counted

    counts = total("counts")
    return Report(
        store=store,
        found=counts["found"],
        written=counts["written"],
        skipped=counts["skipped"],
        records=sum(m.records for m in manifests),
        bytes=sum(m.bytes for m in manifests),
        shards=sum(m.shards for m in manifests),
        seconds=seconds,
        errors=dict(total("errors")),
        reencoded=dict(total("reencoded")),
        splits={m.split: m.samples for m in manifests if m.split},
        workers=workers,
        manifests=tuple(manifests),
    )
