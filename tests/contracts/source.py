"""What every source does: lists cheap refs, the same each time, and reads one at a time, also after a pickle."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from packer.sources.refs import RefTable, RefWriter

if TYPE_CHECKING:
    from pathlib import Path

    from packer.sources.base import Listing, SampleSource

__all__ = ["SourceContract"]


class SourceContract:
    """Inherited by the tests of each source; `source` holds 12 samples with labels 0 to 2, or without labels."""

    labels = frozenset({0, 1, 2})
    extras: tuple[str, ...] = ()
    """Names of the other fields."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> SampleSource:
        """The source under test."""
        raise NotImplementedError

    def scan(self, source: SampleSource, folder: Path) -> tuple[Listing, RefTable]:
        folder.mkdir(exist_ok=True)
        with RefWriter(folder) as refs:
            listing = source.scan(refs)
        return listing, RefTable(folder)

    def test_everything_found_is_a_ref_or_a_problem(self, source: SampleSource, tmp_path: Path) -> None:
        listing, refs = self.scan(source, tmp_path / "refs")
        assert listing.found == len(refs) + len(listing.problems) == 12
        assert listing.type == source.type

    def test_names_differ(self, source: SampleSource, tmp_path: Path) -> None:
        _, refs = self.scan(source, tmp_path / "refs")
        assert len(set(refs.names())) == len(refs)

    def test_two_scans_agree(self, source: SampleSource, tmp_path: Path) -> None:
        first, refs = self.scan(source, tmp_path / "one")
        second, again = self.scan(pickle.loads(pickle.dumps(source)), tmp_path / "two")
        assert (first.digest, list(refs.names())) == (second.digest, list(again.names()))

    def test_refs_are_read_by_a_copy_of_the_source(self, source: SampleSource, tmp_path: Path) -> None:
        listing, refs = self.scan(source, tmp_path / "refs")
        copy = pickle.loads(pickle.dumps(source))
        samples = [copy.read(refs[number]) for number in range(len(refs))]
        assert listing.labelled == bool(self.labels)
        assert {sample.label for sample in samples} == (self.labels or {-1})
        assert tuple(extra.name for extra in listing.extras) == self.extras
        assert all(set(sample.extras) == set(self.extras) for sample in samples)
        assert all(bytes(sample.image[:4]) == b"\x89PNG" for sample in samples)
        assert [sample.ref for sample in samples] == [refs[number] for number in range(len(refs))]

    def test_bytes_are_those_of_the_refs(self, source: SampleSource, tmp_path: Path) -> None:
        listing, refs = self.scan(source, tmp_path / "refs")
        assert listing.bytes == int(refs.sizes.sum())
        assert listing.bytes in {0, sum(len(source.read(refs[number]).image) for number in range(len(refs)))}
