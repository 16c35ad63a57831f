"""Promises of `packer tune`: real loops are measured, the chosen setting follows from them, and memory is respected."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from packer import Job, Recipe, build, tokenized
from packer.measure import tune as tuning
from packer.measure.script import measure_script, program_of
from packer.measure.settings import Measured, Setting, bottleneck, grid, knee, refinements
from packer.measure.trial import Loop, measure
from packer.measure.tune import tune
from packer_reader import StreamDataset
from packer_reader.errors import PackerError, UsageError, WorkerError
from tests.conftest import make_serials
from tests.text.documents import built, words, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def found(setting: Setting, rate: float) -> Measured:
    return Measured(setting, (rate, rate, rate), stalled=1.0, busy=0.5, from_disk=0.0, first=0.1, predicted=1, peak=1)


@given(st.integers(1, 300))
def test_the_grid_uses_all_cpus_and_no_more(cpus: int) -> None:
    settings = grid(cpus)
    assert len(set(settings)) == len(settings)
    assert {0, 1, cpus, cpus + 1} <= {one.workers for one in settings}
    assert all(one.threads == 1 or max(1, one.workers) * one.threads <= cpus for one in settings)
    assert len(settings) <= 3 * (cpus.bit_length() + 3)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.floats(1, 1000)), min_size=1))
def test_the_knee_is_near_the_best_with_the_fewest_workers(rows: list[tuple[int, int, float]]) -> None:
    measured = [found(Setting(workers, threads), rate) for workers, threads, rate in rows]
    chosen, best = knee(measured), max(one.rate for one in measured)
    assert chosen.rate >= 0.95 * best
    assert all(one.setting.workers >= chosen.setting.workers for one in measured if one.rate >= 0.95 * best)


def test_another_start_method_must_be_worth_it() -> None:
    plain, other = found(Setting(2), 100.0), found(Setting(2, start="forkserver"), 104.0)
    assert knee([plain, other]) is plain
    assert knee([plain, replace(other, rates=(120.0,))]).setting == other.setting


def test_what_is_refined_differs_in_one_thing() -> None:
    best = Setting(4, 2)
    for one in refinements(best, ("fork", "forkserver"), pinned=True):
        assert sum(vars(one)[name] != value for name, value in vars(best).items()) == 1
    assert Setting(4, 2, pin_memory=True) in refinements(best, ("fork",), pinned=True)
    assert not [one for one in refinements(best, ("fork",), pinned=False) if one.pin_memory]
    assert refinements(Setting(0), ("fork",), pinned=True) == []


@pytest.mark.parametrize(
    ("values", "step", "binds"),
    [
        ({"stalled": 0.01}, 0.1, "trainer"),
        ({"stalled": 0.01}, 0.0, "transport"),
        ({"busy": 0.97}, 0.0, "cpu"),
        ({"from_disk": 0.9}, 0.0, "storage"),
        ({"from_disk": 0.9, "busy": 0.97}, 0.0, "cpu"),
        ({"setting": Setting(0)}, 0.0, "alone"),
    ],
)
def test_the_bottleneck_follows_from_the_measurements(values: dict[str, Any], step: float, binds: str) -> None:
    assert bottleneck(replace(found(Setting(2), 100.0), **values), step=step) == binds


@pytest.mark.parametrize(
    "setting", [Setting(0), Setting(2, 2, 3), pytest.param(Setting(1, start="forkserver"), marks=pytest.mark.slow)]
)
def test_a_loop_is_measured(setting: Setting, store: Path) -> None:
    loop = Loop(str(store), None, 8, None, None, step=0.002, seconds=0.05, repeats=2)
    got = measure(loop, setting)
    assert len(got["rates"]) == 2
    assert all(0 < rate <= 8 / 0.002 for rate in got["rates"])  # the step's own pace
    assert 0 <= got["stalled"] < 1
    assert 0 <= got["busy"] <= 1
    assert got["first"] > 0
    assert got["peak"] >= 0


def test_tune_says_what_to_paste(run: Callable[..., Any], tmp_path: Path) -> None:
    build(str(make_serials(tmp_path / "src", 300)), str(tmp_path / "o"), Recipe(), Job(workers=1))
    options = ["--batch-size", 16, "--crop", 8, "--seconds", 0.05, "--limit", 15, "-o", tmp_path / "t.png"]
    answer = json.loads(run("tune", tmp_path / "o", *options, "--json").stdout)
    rates = {json.dumps(one["setting"]): one["rate"] for one in answer["measured"]}
    assert len(rates) == len(answer["measured"]) >= 2
    assert answer["chosen"]["rate"] >= 0.95 * max(rates.values())
    assert answer["binds"] in {"cpu", "storage", "transport", "alone"}
    namespace: dict[str, Any] = {}
    exec("from packer_reader import *\n" + "\n".join(answer["lines"]), namespace)
    assert len(next(iter(namespace["batches"]))["image"]) == 16
    drawn = np.asarray(Image.open(tmp_path / "t.png").convert("RGB")).reshape(-1, 3)
    assert {(255, 127, 14), (31, 119, 180)} <= set(map(tuple, drawn.tolist()))  # the chosen one and others


def test_tune_reads_text_and_prints_a_table(run: Callable[..., Any], tmp_path: Path) -> None:
    built(write(tmp_path / "d.jsonl", words(200)), tmp_path / "o", tokenized())
    options = ["--batch-size", 4, "--seq-len", 64, "--seconds", 0.02, "--repeats", 1, "--limit", 0, "--step-ms", 20]
    done = run("tune", tmp_path / "o", *options)
    assert "ds = StreamDataset(" in done.stdout
    assert "seq_len=64" in done.stdout
    assert "not tried, for want of time (--limit)" in done.stdout
    assert "* the " in done.stdout or "* neither " in done.stdout or "* one process " in done.stdout  # what binds
    assert "trying 0 workers" in done.stderr


def test_no_setting_takes_over_half_of_the_memory(tar_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Setting] = []
    loop = Loop(str(tar_store), None, 8, None, None, step=0.0, seconds=0.02, repeats=1)
    ds = StreamDataset(tar_store, batch_size=8)
    monkeypatch.setattr(tuning, "free_memory", lambda: 2 * ds.memory(1, 2))
    answer = tune(loop, 100.0, lambda setting, _: tried.append(setting))
    assert {one.workers for one in tried} == {0, 1}
    assert all(one.predicted <= ds.memory(1, 2) for one in answer.measured)
    (reason,) = answer.left_out
    assert reason.startswith("over half of the free memory")
    assert any(reason in line for line in answer.lines())
    monkeypatch.setattr(tuning, "free_memory", lambda: 0)
    with pytest.raises(UsageError, match="every setting needs over half of the free memory"):
        tune(loop, 100.0, lambda setting, _: tried.append(setting))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--repeats", 0], 2, "--repeats is 0"),
        (["--seconds", 0], 2, "--seconds is 0.0"),
        (["--step-ms", -1], 2, "--step-ms is -1.0"),
        (["-o", "x.txt"], 2, "is no picture's name"),
        (["--batch-size", 0], 2, "batch_size is 0"),
        (["--batch-size", 40], 2, "an epoch has under 4 batches of 40: give a smaller --batch-size"),
        (["--seq-len", 8], 2, "seq_len is for stores of documents"),
        (["--split", "x"], 4, "split"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[Any], code: int, message: str, run: Callable[..., Any], tar_store: Path
) -> None:
    done = run("tune", tar_store, *arguments, exit_code=code)
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


TRAIN = """
import sys, time
from torch.utils.data import DataLoader
from packer_reader import StreamDataset, loader

if __name__ == "__main__":
    ds = StreamDataset(sys.argv[1], batch_size=4, threads=7)
    batches = MAKE
    assert batches.num_workers < 9
    for epoch in range(1000):
        for batch in batches:
            assert len(batch["image"]) <= 4
            time.sleep(0.004)
    sys.exit("it went on to the end")
"""
LOADERS = {
    "ours": "loader(ds, num_workers=9)",
    "stock": "DataLoader(ds, None, num_workers=9, persistent_workers=True, prefetch_factor=5)",
}


def program(folder: Path, text: str = TRAIN, make: str = LOADERS["ours"]) -> Path:
    (folder / "train.py").write_text(text.replace("MAKE", make))
    return folder / "train.py"


@pytest.mark.parametrize(
    ("setting", "make"),
    [
        (Setting(0, 2), "ours"),
        (Setting(2, 1, 3), "stock"),
        pytest.param(Setting(1, start="forkserver"), "stock", marks=pytest.mark.slow),
        pytest.param(Setting(1, start="spawn"), "ours", marks=pytest.mark.slow),
    ],
)
def test_a_script_is_run_with_the_setting(setting: Setting, make: str, tar_store: Path, tmp_path: Path) -> None:
    words = program_of(f"python {program(tmp_path, make=LOADERS[make])} {tar_store}")
    words[0] = sys.executable
    got = measure_script(words, setting, looped(tar_store, 0.05, 2))
    assert len(got["rates"]) == 2
    assert all(0 < rate <= 4 / 0.004 for rate in got["rates"])
    assert got["predicted"] == StreamDataset(tar_store, batch_size=4, threads=setting.threads).memory(
        setting.workers, setting.prefetch
    )


ANEW = """
import sys
from packer_reader import StreamDataset, loader

sys.stdout.buffer.write(b"\\xff\\xfe")
for epoch in range(200):
    ds = StreamDataset(sys.argv[1], batch_size=4)
    for batch in loader(ds):
        pass
sys.exit("it went on to the end")
"""


def words_of(path: Path, store: Path) -> list[str]:
    return [sys.executable, str(path), str(store)]


def looped(store: Path, seconds: float, repeats: int) -> Loop:
    return Loop(str(store), None, 4, None, None, 0.0, seconds, repeats)


def test_a_script_must_read_the_store(tar_store: Path, lmdb_store: Path, tmp_path: Path) -> None:
    words = [sys.executable, str(program(tmp_path)), str(lmdb_store)]
    with pytest.raises(PackerError, match="not the store that was named"):
        measure_script(words, Setting(0), looped(tar_store, 0.02, 1))


def test_a_loader_that_is_made_anew_each_epoch_is_measured(tar_store: Path, tmp_path: Path) -> None:
    got = measure_script(
        [sys.executable, str(program(tmp_path, ANEW)), str(tar_store)], Setting(0), looped(tar_store, 0.05, 2)
    )
    assert len(got["rates"]) == 2


@pytest.mark.parametrize("persistent", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_what_workers_do_is_counted(persistent: bool, tar_store: Path, tmp_path: Path) -> None:
    make = f"DataLoader(ds, None, num_workers=9, persistent_workers={persistent})"
    text = TRAIN.replace("time.sleep(0.004)", "pass")
    words = [sys.executable, str(program(tmp_path, text, make)), str(tar_store)]
    assert measure_script(words, Setting(2), looped(tar_store, 0.3, 2))["busy"] > 0.2


def test_a_setting_that_hangs_is_left_out(tar_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "grid", lambda _: [Setting(1)])
    monkeypatch.setattr(tuning, "_WAITS", 4.0)
    monkeypatch.setattr(tuning, "refinements", lambda *_, **__: [Setting(1, start="forkserver")])
    text = TRAIN.replace('if __name__ == "__main__":', "if True:")
    words = [sys.executable, str(program(tmp_path, text)), str(tar_store)]
    found = tune(Loop(str(tar_store), None, 4, None, None, 0.0, 0.05, 1), 100.0, lambda *_: None, words)
    assert [one.setting for one in found.measured] == [Setting(1)]
    ((reason, left),) = found.left_out.items()
    assert left == [Setting(1, start="forkserver")]
    assert "did not end" in reason or "ended by itself" in reason


def test_a_module_is_run_as_well(tar_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path)
    monkeypatch.chdir(tmp_path)
    got = measure_script([sys.executable, "-m", "train", str(tar_store)], Setting(0), looped(tar_store, 0.02, 1))
    assert len(got["rates"]) == 1


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("print(1)", PackerError, "read no batch of a StreamDataset"),
        ("raise RuntimeError('my bug')", WorkerError, "my bug"),
        (
            "from packer_reader import open\nopen('gone')",
            PackerError,
            "the script ended with: store .*gone' ",
        ),
        (TRAIN.replace("range(1000)", "range(0)").replace("sys.exit", "print"), PackerError, "read no batch"),
    ],
)
def test_a_script_that_trains_nothing_is_an_error(
    text: str, kind: type[PackerError], message: str, tar_store: Path, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message):
        measure_script(
            [sys.executable, str(program(tmp_path, text)), str(tar_store)], Setting(0), looped(tar_store, 0.02, 1)
        )


def test_a_script_that_is_too_large_for_memory_is_not_run(tar_store: Path, tmp_path: Path) -> None:
    words = [sys.executable, str(program(tmp_path)), str(tar_store)]
    got = measure_script(words, Setting(1024, prefetch=1 << 20), looped(tar_store, 0.02, 1))
    assert got.keys() == {"too_large"}
    assert got["too_large"] > 1 << 40


@pytest.mark.parametrize(
    "command", ["", "bash train.sh", "python", "python -m", "python -c pass", "python gone.py", "python '"]
)
def test_what_is_no_python_program_is_refused(command: str) -> None:
    with pytest.raises(UsageError, match="--script"):
        program_of(command)


@pytest.mark.slow
def test_tune_finds_a_setting_for_a_script(run: Callable[..., Any], tar_store: Path, tmp_path: Path) -> None:
    script = f"python {program(tmp_path)} {tar_store}"
    options = ["--seconds", 0.1, "--repeats", 2, "--limit", 20]
    answer = json.loads(run("tune", tar_store, "--script", script, *options, "--json").stdout)
    assert answer["binds"] in {"trainer", "cpu", "transport", "alone"}
    assert answer["lines"][0].startswith("ds = StreamDataset(...")
    assert answer["script"][1:] == script.split()[1:]
