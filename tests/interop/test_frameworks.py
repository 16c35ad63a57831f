"""The README's training recipes in two real processes, and what frameworks do with a data set of ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from packer import Job, Recipe, build
from tests.conftest import make_serials

pytestmark = pytest.mark.interop
README = (Path(__file__).parents[2] / "README.md").read_text()
RECIPES = dict(re.findall(r"```python\n# recipe: (\w+)\n(.*?)```", README, re.DOTALL))

RECORD = """
import atexit, os, torch
import torch.distributed as dist
# gloo's threads may abort a process that ends with its group still there
atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
import torch.nn.modules.module as module
LOG = open(f"{os.environ['SEEN']}.{os.environ.get('RANK', os.environ.get('LOCAL_RANK', '0'))}", "a")
def seen(layer, inputs):
    # Pictures are flat and carry their number: red + 256 green, here divided by 255.
    if isinstance(layer, torch.nn.Flatten) and layer.training:
        pixels = (inputs[0][:, :2, 0, 0] * 255).round().long()
        print(*(pixels[:, 0] + 256 * pixels[:, 1]).tolist(), file=LOG, flush=True)
module.register_module_forward_pre_hook(seen)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipes' store: 96 numbered pictures, 3 batches of 16 for each of two ranks."""
    folder = tmp_path_factory.mktemp("frameworks")
    build(str(make_serials(folder / "src", 96)), str(folder / "out.lmdb"), Recipe(container="lmdb"), Job(workers=1))
    return folder


def program(code: str) -> str:
    """A recipe for a small store on CPU, which notes what reaches the network."""
    code = code.replace("batch_size=64", "batch_size=16").replace("train_batch_size=64", "train_batch_size=16")
    code = code.replace('TrainingArguments("runs",', 'TrainingArguments("runs", use_cpu=True,')
    code = code.replace("lightning.Trainer(", 'lightning.Trainer(accelerator="cpu", enable_checkpointing=False,')
    main = textwrap.indent(code, "    ")
    return f"{RECORD}\nif __name__ == '__main__':\n{main}"


def environment(seen: Path, rank: int, world: int, meet: int) -> dict[str, str]:
    found = {
        "SEEN": str(seen),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
        "ACCELERATE_USE_CPU": "1",
    }
    if world > 1:
        found |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        found |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meet)}
    return os.environ | found


def run(home: Path, name: str, code: str, world: int, port: int) -> list[subprocess.CompletedProcess[str]]:
    """Run a program as so many ranks; what each said."""
    script, seen = home / f"run_{name}.py", home / f"{name}.seen"
    script.write_text(code)
    running = [
        subprocess.Popen(
            [sys.executable, str(script)], cwd=home, env=environment(seen, rank, world, port), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(world)
    ]  # fmt: skip
    done = []
    for process in running:
        try:
            out, err = process.communicate(timeout=150)
        except subprocess.TimeoutExpired:
            for other in running:
                other.kill()
            raise
        done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return done


def lines_seen(home: Path, name: str, rank: int) -> list[list[int]]:
    path = home / f"{name}.seen.{rank}"
    return [list(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


def free_port() -> int:
    import socket

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@pytest.mark.parametrize("name", ["ddp", "accelerate", pytest.param("trainer", marks=pytest.mark.slow)])
def test_recipes_for_several_ranks_see_each_sample_once(name: str, home: Path) -> None:
    done = run(home, name, program(RECIPES[name]), 2, free_port())
    assert [process.returncode for process in done] == [0, 0], done[0].stderr + done[1].stderr
    batches = [lines_seen(home, name, rank) for rank in (0, 1)]
    assert [len(each) for each in batches] == [6, 6]
    for epoch in (0, 3):
        counted = Counter(number for each in batches for batch in each[epoch : epoch + 3] for number in batch)
        assert counted == Counter(range(96))
    assert batches[0][:3] != batches[0][3:]


@pytest.mark.parametrize(
    "name",
    ["single", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lightning", "accelerate", "trainer"))],
)
def test_recipes_alone_see_each_sample_once(name: str, home: Path) -> None:
    (done,) = run(home, f"{name}1", program(RECIPES[name]), 1, 0)
    assert done.returncode == 0, done.stderr
    batches = lines_seen(home, f"{name}1", 0)
    assert len(batches) == 12
    for epoch in (0, 6):
        assert Counter(n for batch in batches[epoch : epoch + 6] for n in batch) == Counter(range(96))


def test_lightning_shares_out_between_two_ranks(home: Path) -> None:
    code = program(RECIPES["lightning"]).replace("max_epochs=2,", 'max_epochs=2, devices=2, strategy="ddp",')
    done = run(home, "lightning2", code, 2, free_port())
    assert [process.returncode for process in done] == [0, 0], done[0].stderr + done[1].stderr
    batches = [lines_seen(home, "lightning2", rank) for rank in (0, 1)]
    for epoch in (0, 3):
        counted = Counter(number for each in batches for batch in each[epoch : epoch + 3] for number in batch)
        assert counted == Counter(range(96))


RESUME = """
import copy
from lightning.pytorch.callbacks import Callback
class Stop(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, place):
        if trainer.global_step == STOP:
            trainer.save_checkpoint("stop.ckpt")
            raise SystemExit
ds = StreamDataset("out.lmdb", batch_size=16, drop_last=True)
batches = loader(ds, num_workers=WORKERS)
trainer = lightning.Trainer(max_epochs=3, logger=False, enable_progress_bar=False, callbacks=[Stop()])
trainer.fit(Classifier(ds.store[0]["image"].size, 3), batches, ckpt_path=CKPT)
"""


@pytest.mark.parametrize("stop", [8, *(pytest.param(stop, marks=pytest.mark.slow) for stop in (2, 6))])
def test_lightning_resumes_in_the_middle_of_an_epoch(stop: int, home: Path) -> None:
    setup = RECIPES["lightning"].split("ds = StreamDataset")[0]
    for name, at, workers, checkpoint in (
        ("whole", 99, 0, None),
        ("first", stop, 2, None),
        ("rest", 99, 1, "stop.ckpt"),
    ):
        code = RESUME.replace("STOP", str(at)).replace("WORKERS", str(workers)).replace("CKPT", repr(checkpoint))
        (home / f"{name}{stop}.seen.0").unlink(missing_ok=True)
        (done,) = run(home, f"{name}{stop}", program(setup + code), 1, 0)
        assert done.returncode == 0, done.stderr
    whole, first, rest = (lines_seen(home, f"{name}{stop}", 0) for name in ("whole", "first", "rest"))
    assert len(whole) == 18
    assert first + rest == whole


NAIVE = """
from accelerate import Accelerator
from torch.utils.data import DataLoader
from packer_reader import StreamDataset
accelerator = Accelerator()
ds = StreamDataset("out.lmdb", batch_size=16)
for batch in accelerator.prepare(DataLoader(ds, batch_size=None, num_workers=WORKERS)):
    pass
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_accelerate_may_not_split_the_data_once_more(workers: int, home: Path) -> None:
    done = run(home, f"naive{workers}", NAIVE.replace("WORKERS", str(workers)), 2, free_port())
    assert done[0].returncode == 1
    assert "Accelerate runs 2 processes and would split the data once more" in done[0].stderr
    assert "rank=state.process_index" in done[0].stderr
    assert "rank=0, world_size=1" in done[0].stderr


DEALT = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from packer_reader import StreamDataset
accelerator = Accelerator()
layer = torch.nn.Flatten()
ds = StreamDataset("out.lmdb", rank=0, world_size=1)
batches = accelerator.prepare(DataLoader(ds, batch_size=16, drop_last=True))
for epoch in range(2):
    for batch in batches:
        layer(batch["image"].float() / 255)
"""


def test_accelerate_may_deal_out_single_samples(home: Path) -> None:
    done = run(home, "dealt", program(DEALT), 2, free_port())
    assert [process.returncode for process in done] == [0, 0], done[0].stderr + done[1].stderr
    batches = [lines_seen(home, "dealt", rank) for rank in (0, 1)]
    for epoch in (0, 3):
        counted = Counter(number for each in batches for batch in each[epoch : epoch + 3] for number in batch)
        assert counted == Counter(range(96))
