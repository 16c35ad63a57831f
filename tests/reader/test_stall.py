"""Promises of the meter: it measures the loop, is not noticed in it, and says what to do."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from packer_reader import StallMeter, StreamDataset, loader, stall

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Slow:
    """Batches that take some seconds each; workers as DataLoader says them."""

    def __init__(self, seconds: float, count: int = 12, workers: int | None = 0) -> None:
        self.seconds, self.count = seconds, count
        if workers is not None:
            self.num_workers = workers

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            spend(self.seconds)
            yield number


NOW = [0.0]


def spend(seconds: float) -> None:
    """Let time pass on the test's own clock."""
    NOW[0] += seconds


def clock() -> float:
    return NOW[0]


@pytest.mark.parametrize(("reading", "training"), [(0.03, 0.01), (0.01, 0.03), (0.02, 0.0), (0.0, 0.02)])
def test_the_share_is_what_was_spent(reading: float, training: float) -> None:
    said: list[str] = []
    meter = StallMeter(Slow(reading), said.append, clock)
    for _ in range(2):
        for _ in meter:
            spend(training)
    # eleven waits, since the first batch counts apart, and twelve steps
    assert meter.share == pytest.approx(11 * reading / (11 * reading + 12 * training))
    assert meter.first == pytest.approx(reading)
    assert (meter.steps, len(meter), len(said)) == (12, 12, 2)


@pytest.mark.parametrize(
    ("source", "word"),
    [
        (Slow(0.0), "training is the limit"),
        (Slow(0.02), "read beside the training"),
        (Slow(0.02, workers=1), "take more than 1 workers: there are 4 CPUs"),
        (Slow(0.02, workers=4), "all CPUs read already"),
        (Slow(0.02, workers=None), "all CPUs read already"),
    ],
)
def test_the_advice_fits_what_was_measured(source: Slow, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "usable_cpus", lambda: 4)
    said: list[str] = []
    for _ in StallMeter(source, said.append, clock):
        spend(0.01)
    assert word in said[0]


def test_it_is_the_loader_in_all_else(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ds = StreamDataset(store, batch_size=4, seed=3, with_id=True)
    meter = StallMeter(loader(ds, num_workers=0))
    assert (len(meter), meter.num_workers) == (len(ds), 0)
    ids = [batch["id"].tolist() for batch in meter]
    assert ids == [batch["id"].tolist() for batch in StreamDataset(store, batch_size=4, seed=3, with_id=True)]
    assert meter.state_dict() == meter.batches.state_dict()  # type: ignore[attr-defined]
    assert len(copy.copy(meter)) == len(meter)
    assert "the loop waited for data" in capfd.readouterr().err
    with pytest.raises(AttributeError):
        _ = meter.nothing


def test_an_epoch_that_is_left_or_empty_says_nothing() -> None:
    said: list[Any] = []
    meter = StallMeter(Slow(0.0), said.append, clock)
    next(iter(meter))
    assert list(StallMeter([], said.append)) == []
    assert said == []
