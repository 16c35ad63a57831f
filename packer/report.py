"""What came of a build."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packer_reader.format.manifest import Manifest

__all__ = ["Report", "Run", "make_report"]


@dataclass(frozen=True)
class Report:
    """What came of a build."""

    store: str
    found: int
    written: int
    samples: int
    """Of the stores; other than `written` where documents were packed to sequences."""
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
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds spent on `scan`, `start` (waiting for workers to load), `convert`, `finish` (columns, sync, rename)."""
    reused: int = 0
    """Samples copied from the store of `--reuse`."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Stored bytes by size; empty with one size."""
    manifests: tuple[Manifest, ...] = field(repr=False, default=())

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        rate = self.written / self.seconds if self.seconds else 0.0
        return {
            "store": self.store,
            "found": self.found,
            "written": self.written,
            "skipped": self.skipped,
            "samples": self.samples,
            "records": self.records,
            "bytes": self.bytes,
            "shards": self.shards,
            "seconds": round(self.seconds, 3),
            "samples_per_s": round(rate, 1),
            "errors": self.errors,
            "reencoded": self.reencoded,
            "splits": self.splits,
            "sizes": self.sizes,
            "workers": self.workers,
            "reused": self.reused,
            "phases": {name: round(seconds, 3) for name, seconds in self.phases.items()},
        }


def make_report(store: str, sizes: Mapping[str, list[Manifest]], run: Run) -> Report:
    """The sum over the stores of a build.

    Args:
        store: the target.
        sizes: the manifests, by size; the sizes hold the same samples.
        run: how it was done.
    """
    first = next(iter(sizes.values()))
    every = [manifest for manifests in sizes.values() for manifest in manifests]

    def total(name: str, manifests: list[Manifest]) -> Counter[str]:
        counted: Counter[str] = Counter()
        for manifest in manifests:
            counted.update(getattr(manifest, name))
        return counted

    counts = total("counts", first)
    return Report(
        store=store,
        found=counts["found"],
        written=counts["written"],
        samples=sum(m.samples for m in first),
        skipped=counts["skipped"],
        records=sum(m.records for m in every),
        bytes=sum(m.bytes for m in every),
        shards=sum(m.shards for m in every),
        seconds=sum(run.phases.values()),
        errors=dict(total("errors", first)),
        reencoded=dict(total("reencoded", first)),
        splits={m.split: m.samples for m in first if m.split},
        workers=run.workers,
        phases=run.phases,
        reused=run.reused,
        sizes={name: sum(m.bytes for m in manifests) for name, manifests in sizes.items() if len(sizes) > 1},
        manifests=tuple(every),
    )


@dataclass
class Run:
    """How a build went, as it goes."""

    workers: int = 1
    reused: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.monotonic)

    def ended(self, phase: str) -> None:
        """A phase is over; the next begins."""
        now = time.monotonic()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self._since
        self._since = now
