"""Promises of `packer bench`: stages apart, limits of the same run, what binds, and the raw folder beside it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from packer import Job, Recipe, build, tokenized
from packer.measure.bench import Stage, bench, bounds_of
from packer.measure.counters import used
from packer.measure.limits import copy_rate, decode_rate, disk_rate
from packer.measure.meter import Finished, Meter
from packer.measure.settings import Setting
from packer.measure.stages import raw
from packer.measure.trial import Loop
from packer_reader.errors import SourceError, UsageError
from tests.conftest import make_photos
from tests.text.documents import built, words, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STAGES = "disk, cold", "page cache", "decode", "batch", "transport", "end to end", "first epoch, cold"
QUICK = ["--batch-size", 8, "--seconds", 0.03, "--repeats", 2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"), 60)


@pytest.fixture(scope="module")
def photo_store(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bench") / "o"
    build(str(folder), str(out), Recipe(resize=(32,), fit="crop"), Job(workers=1))
    return out


def test_bench_measures_all_stages(run: Callable[..., Any], photo_store: Path, folder: Path, tmp_path: Path) -> None:
    found = json.loads(
        run("bench", photo_store, "--crop", 24, "--raw", folder, *QUICK, "-o", tmp_path / "b.png", "--json").stdout
    )
    rates = {stage["name"]: stage["rate"] for stage in found["stages"]}
    assert tuple(rates) == STAGES
    assert all(rate > 0 for rate in rates.values())
    assert all(stage["low"] <= stage["rate"] <= stage["high"] for stage in found["stages"])
    assert found["limits"]["copied"] > found["limits"]["disk"] > 0
    assert found["limits"]["decoded"] > 0
    assert [stage["name"] for stage in found["raw"]] == ["raw folder, cold", "raw folder, warm"]
    assert found["speedups"].keys() == {"cold", "warm"}
    assert found["speedups"]["warm"] == pytest.approx(rates["end to end"] / found["raw"][1]["rate"])
    assert found["binds"] in {"reading", "decoding", "transport"}
    drawn = np.asarray(Image.open(tmp_path / "b.png").convert("RGB")).reshape(-1, 3)
    assert {(31, 119, 180), (127, 127, 127)} <= set(map(tuple, drawn.tolist()))  # the store and the raw folder
    transport = next(stage for stage in found["stages"] if stage["name"] == "transport")
    assert transport["bytes"] == 24 * 24 * 3 + 8  # of the pixels and the label


@pytest.mark.slow
def test_bench_of_text_has_no_decoding(run: Callable[..., Any], tmp_path: Path) -> None:
    built(write(tmp_path / "d.jsonl", words(300)), tmp_path / "o", tokenized())
    done = run("bench", tmp_path / "o", "--seq-len", 64, *QUICK)
    lines = done.stdout.splitlines()
    assert not [line for line in lines if line.startswith("decode")]
    assert [line for line in lines if line.startswith("page cache")]
    assert [line for line in lines if line.startswith("* ")]
    assert "measuring limits (1 of 7) ..." in done.stderr
    assert "measuring disk (2 of 7, about " in done.stderr


def test_what_cannot_be_measured_is_said(
    folder: Path, photo_store: Path, tmp_path: Path, run: Callable[..., Any]
) -> None:
    loop = Loop(str(photo_store), None, 8, None, None, 0.0, 0.02, 1)
    (tmp_path / "none").mkdir()
    with pytest.raises(SourceError, match="holds no images as files"):
        bench(loop, str(tmp_path / "none"), lambda *_: None)
    build(str(folder), str(tmp_path / "o"), Recipe(), Job(workers=1))
    with pytest.raises(UsageError, match="differ in size: give --crop N"):
        bench(Loop(str(tmp_path / "o"), None, 8, None, None, 0.0, 0.02, 1), None, lambda *_: None)
    built(write(tmp_path / "d.jsonl", words(9)), tmp_path / "t", tokenized())
    with pytest.raises(UsageError, match="holds none: leave it out"):
        bench(Loop(str(tmp_path / "t"), None, 2, None, None, 0.0, 0.02, 1), str(folder), lambda *_: None)
    assert "--seconds is 0" in run("bench", photo_store, "--seconds", 0, exit_code=2).stderr


class Clock:
    """Time that passes when the loop says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_meter_counts_waiting_and_work_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    meter = Meter(10.0, 2, len, ahead=1)

    def batches() -> Any:
        while True:
            clock.now += 1.0
            yield [0] * 5

    def train() -> None:
        for _ in meter.epoch(batches()):
            clock.now += 3.0

    with pytest.raises(Finished):
        train()
    found = meter.found(1.0)
    assert found["rates"] == [15 / 12, 15 / 12]  # three steps of 4 s are the first to fill 10
    assert found["stalled"] == pytest.approx(0.25)
    assert found["first"] == 1.0
    assert found["samples"] == 30


def test_the_first_batch_of_an_epoch_counts_only_when_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)

    def batches() -> Any:
        clock.now += 50.0  # workers start
        for _ in range(5):
            clock.now += 1.0
            yield [0]

    meter = Meter(2.0, 100, len, ahead=0)
    for _ in range(3):
        for _ in meter.epoch(batches()):
            pass
    assert set(meter.found(1.0)["rates"]) == {1.0}
    cold = Meter(1000.0, 1, len, ahead=None)
    for _ in cold.epoch(batches()):
        pass
    assert cold.found(1.0)["rates"] == [5 / 55]


def test_an_epoch_of_one_batch_is_measured() -> None:
    meter = Meter(0.001, 2, len)

    def train() -> None:
        while True:
            for _ in meter.epoch([[0] * 3]):
                deadline = time.perf_counter() + 0.0005
                while time.perf_counter() < deadline:
                    pass

    with pytest.raises(Finished):
        train()
    assert len(meter.found(1.0)["rates"]) == 2


def test_what_workers_used_counts_after_they_are_gone() -> None:
    burn = "import time\nends = time.process_time() + 0.3\nwhile time.process_time() < ends: pass"
    before = used()
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert (used() - before).cpu >= 0.25


def test_text_is_not_told_to_store_smaller_images() -> None:
    stages = [Stage("page cache", 100.0, 1, 1, 1, "", None), Stage("batch", 10.0, 1, 1, 1, "", None),
              Stage("transport", 30.0, 1, 1, 1, "", None), Stage("decode", 5.0, 1, 1, 1, "", None)]  # fmt: skip
    assert bounds_of(stages[:3], 2, coded=False) == {"reading": 20.0, "transport": 30.0}
    assert bounds_of(stages, 2, coded=True) == {"reading": 200.0, "transport": 30.0, "decoding": 5.0}
    masked = [replace(one, rate=50.0) if one.name == "decode" else one for one in stages]
    assert bounds_of(masked, 2, coded=True)["reading"] == 10.0  # the masks' decoding is none of the image's


def test_files_that_cannot_be_opened_are_passed_over(folder: Path, photo_store: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(folder.rglob("*.jpg"))):
        shutil.copy(path, tmp_path / f"{number}.jpg")
        (tmp_path / f"{number}x.jpg").write_bytes(b"no picture")
    loop = Loop(str(photo_store), None, 8, None, None, 0.0, 0.02, 1)
    assert raw(loop, Setting(0), str(tmp_path), None)["rates"][0] > 0
    for path in tmp_path.glob("*[0-9].jpg"):
        path.write_bytes(b"")
    with pytest.raises(SourceError, match="cannot be opened as images"):
        raw(loop, Setting(0), str(tmp_path), None)


def test_sequences_have_their_share_of_the_bytes(tmp_path: Path) -> None:
    store = built(write(tmp_path / "d.jsonl", words(300)), tmp_path / "o", tokenized())
    whole = Loop(str(tmp_path / "o"), None, 4, None, None, 0.0, 0.02, 1)
    cut = Loop(str(tmp_path / "o"), None, 4, None, 64, 0.0, 0.02, 1)
    sequences = sum(len(batch["tokens"]) for batch in cut.data(Setting(0)))
    assert whole.sample_bytes() == store.manifest.bytes / len(store)
    assert cut.sample_bytes() == pytest.approx(store.manifest.bytes / sequences, rel=0.02)


def test_limits_are_those_of_the_machine(folder: Path) -> None:
    files = sorted(folder.rglob("*.jpg"))
    assert 0 < disk_rate(files, 1.0) < 1e12
    assert disk_rate([], 1.0) == disk_rate([folder / "gone"], 1.0) == 0.0
    assert 1e8 < copy_rate() < 1e12
    blobs = [path.read_bytes() for path in files]
    assert decode_rate(blobs, "jpg", 0.05) > 100
    before = used(files[0])
    assert vars(used(files[0]) - before).keys() == vars(before).keys()
    assert all(value >= 0 for value in vars(used(files[0]) - before).values())
