"""`scripts/bench read --part tools`: what `packer bench` and `packer tune` measure, against loops of this script, turn
by turn in one run; and the setting that tune chooses, against an exhaustive sweep of workers, threads and prefetch."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["compare_tools"]

BATCH, SECONDS, REPEATS = 256, 1.5, 3
LOOP = """
import json, sys, time
from torch.utils.data import DataLoader
from packer_reader import RandomResizedCrop, StreamDataset

def main():
    asked = json.loads(sys.argv[1])
    crop = RandomResizedCrop(asked["crop"]) if asked["crop"] else None
    ds = StreamDataset(asked["store"], batch_size=asked["batch"], crop=crop, threads=asked["threads"])
    workers = asked["workers"]
    more = {"prefetch_factor": asked["prefetch"], "persistent_workers": True} if workers else {}
    batches = DataLoader(ds, batch_size=None, num_workers=workers, **more)
    rates = []
    for epoch in range(asked["epochs"]):
        steps = iter(batches)
        next(steps)  # where an epoch turns over is not counted
        started, count = time.perf_counter(), 0
        for batch in steps:
            count += len(batch["label"])
        rates.append(count / (time.perf_counter() - started))
    print(json.dumps(rates[1:]))  # the first one is to get warm

if __name__ == "__main__":
    main()
"""


def loop(folder: Path, store: Path, crop: int, setting: tuple[int, int, int]) -> float:
    """Samples a second with (workers, threads, prefetch), in a process of its own: median of the later epochs."""
    workers, threads, prefetch = setting
    program = folder / "loop.py"
    program.write_text(LOOP)
    asked = {
        "store": str(store), "batch": BATCH, "crop": crop, "workers": workers, "threads": threads,
        "prefetch": prefetch, "epochs": 4,
    }  # fmt: skip
    done = subprocess.run([sys.executable, str(program), json.dumps(asked)], capture_output=True, text=True, check=True)
    rates: list[float] = json.loads(done.stdout)
    return statistics.median(rates)


def packer(*arguments: object) -> Any:
    command = [sys.executable, "-m", "packer", *map(str, arguments), "--json"]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    found["took"] = time.perf_counter() - started
    return found


def compare_tools(source: Path, folder: Path, repeats: int) -> None:
    from bench_read import jpegs

    store, crop = jpegs(source, folder, 256), 224
    cpus = 2
    rows: dict[str, dict[str, list[float]]] = {"end to end": {}, "batch": {}}
    chosen = []
    for _ in range(repeats):
        benched = packer("bench", store, "--crop", crop, "--raw", source)
        tuned = packer("tune", store, "--crop", crop)
        stages = {stage["name"]: stage["rate"] for stage in benched["stages"]}
        settings = {(m["setting"]["workers"], m["setting"]["threads"]): m["rate"] for m in tuned["measured"][:7]}
        for name, workers, threads in (("end to end", cpus, 1), ("batch", 0, cpus)):
            row = rows[name]
            row.setdefault("scripts/bench", []).append(loop(folder, store, crop, (workers, threads, 2)))
            row.setdefault("packer bench", []).append(stages[name])
            row.setdefault("packer tune", []).append(settings[workers, threads])
        chosen.append(tuned["chosen"]["setting"])
        print(f"packer bench --raw took {benched['took']:.0f} s, packer tune {tuned['took']:.0f} s")
    for name, row in rows.items():
        own = row["scripts/bench"]
        spread = max(own) - min(own)
        for who, rates in row.items():
            middle = statistics.median(rates)
            away = abs(middle - statistics.median(own))
            within = "" if who == "scripts/bench" else f"   {away:,.0f} away, twice the spread is {2 * spread:,.0f}"
            print(f"{name:11} {who:14} {middle:8,.0f} images/s   {min(rates):,.0f} to {max(rates):,.0f}{within}")
    sweep: dict[tuple[int, int, int], list[float]] = {}
    recommended = statistics.mode([(one["workers"], one["threads"], one["prefetch"]) for one in chosen])
    wanted = sorted({recommended, *product((0, 1, 2, 3, 4), (1, 2), (1, 2, 4))})
    wanted = [setting for setting in wanted if setting[0] or setting[2] == 2]
    for _ in range(2):
        for setting in wanted:
            sweep.setdefault(setting, []).append(loop(folder, store, crop, setting))
    best = max(sweep, key=lambda setting: statistics.median(sweep[setting]))
    print(f"exhaustive: {len(wanted)} settings (workers, threads, prefetch)")
    for name, setting in (("best", best), ("recommended", recommended)):
        rates = sweep[setting]
        print(f"{name:11} {setting} {statistics.median(rates):,.0f} images/s   {min(rates):,.0f} to {max(rates):,.0f}")
    ratio = statistics.median(sweep[recommended]) / statistics.median(sweep[best])
    print(f"recommended is {ratio:.2f} of the best")
