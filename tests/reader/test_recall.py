"""`packer inspect --batch` names the samples that a recorded run saw."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from packer_reader import StreamDataset, loader, shuffle_quality
from packer_reader import open as open_store
from packer_reader.order import EpochOrder
from packer_reader.shuffle import order_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def stream(path: Path, **options: Any) -> StreamDataset:
    return StreamDataset(path, **({"batch_size": 7, "shuffle_buffer": 20, "with_id": True, "seed": 5} | options))


def recalled(run: Callable[..., Any], store: Path, batch: str, *more: object) -> list[int]:
    options = ["--batch-size", 7, "--seed", 5, "--shuffle-buffer", 20, "--json", *more]
    found = json.loads(run("inspect", store, "--batch", batch, *options).stdout)
    return [sample["sample"] for sample in found["samples"]]


def test_it_agrees_with_what_each_rank_saw(run: Callable[..., Any], store: Path) -> None:
    for rank in (0, 1):
        batches = loader(stream(store, rank=rank, world_size=2), num_workers=2)
        for epoch in range(2):
            for step, batch in enumerate(batches):
                if step in {0, 3}:
                    more = ("--rank", rank, "--world-size", 2)
                    assert recalled(run, store, f"{epoch}:{step}", *more) == batch["id"].tolist()


@pytest.mark.parametrize(
    ("options", "flags"),
    [({"pad": True}, ["--pad"]), ({"drop_last": True}, ["--drop-last"]), ({"lanes": 7}, ["--lanes", 7]),
     ({"block": 3}, ["--block", 3])],
)  # fmt: skip
def test_it_agrees_for_every_tail_and_layout(
    options: dict[str, Any], flags: list[object], run: Callable[..., Any], store: Path
) -> None:
    for rank in (0, 1):
        for step, batch in enumerate(stream(store, rank=rank, world_size=2, **options)):
            more = ("--rank", rank, "--world-size", 2, *flags)
            assert recalled(run, store, f"0:{step}", *more) == batch["id"].tolist()


def test_it_agrees_after_a_resume_with_another_batch_size(run: Callable[..., Any], store: Path) -> None:
    state = stream(store, batch_size=11).state_dict(batches=2)
    later = stream(store)
    later.load_state_dict(state)
    for step, batch in enumerate(later):
        assert recalled(run, store, f"0:{step}", "--start", state["samples"]) == batch["id"].tolist()


def test_it_names_class_and_source_and_draws(run: Callable[..., Any], store: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    done = run("inspect", store, "--batch", "0:1", "--batch-size", 6, "-o", sheet)
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    opened = open_store(store)
    number = int(lines[0].split()[0])
    assert lines[0].split() == [
        str(number),
        (opened.classes or ())[opened[number]["label"]],
        repr(opened.source(number)),
    ]
    pixels = np.asarray(Image.open(sheet))
    colours = {tuple(colour) for colour in pixels.reshape(-1, 3).tolist()}
    assert tuple(opened[number]["image"][0, 0].tolist()) in colours


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--batch", "0"], 2, "--batch goes with --batch-size"),
        (["--batch", "0", "--batch-size", 4], 2, "give EPOCH:STEP"),
        (["--batch", "0:99", "--batch-size", 4], 4, "epoch 0 has no step 99: it has 15 batches of 4 samples"),
        (["--batch", "0:0", "--batch-size", 4, "--rank", 2, "--world-size", 2], 2, "rank in 0..world_size-1"),
        (["-o", "x.png"], 2, "--batch EPOCH:STEP too"),
        (["--rank", 1], 2, "give --batch EPOCH:STEP too"),
        (["--batch", "0:0", "--batch-size", 1, "--rank", 99, "--world-size", 100], 4, "rank 99 of 100 got no sample"),
        (["--batch", "0:0", "--batch-size", 4, "--lanes", 3], 2, "must divide the global batch of 4"),
        (["--batch", "0:7", "--batch-size", 8, "--drop-last"], 4, "has no step 7: it has 7 batches"),
        (["--batch", "0:0", "--batch-size", 4, "--shuffle-buffer", "9" * 5000], 2, "shuffle_buffer is"),
        (["--batch", "0:0", "--batch-size", 4, "-o", "x.psd"], 2, "is no picture's name"),
        (["--batch", "0:0", "--batch-size", 4, "-o", "sheet.xyz"], 2, "is no picture's name"),
    ],
)
def test_what_cannot_be_recalled_is_said(
    options: list[object], code: int, message: str, run: Callable[..., Any], store: Path
) -> None:
    assert message in run("inspect", store, *options, exit_code=code).stderr


@pytest.mark.parametrize(("block", "window"), [(1, 20), (3, 24), (5, 60)])
def test_expected_mixing_is_what_orders_do(block: int, window: int, store: Path) -> None:
    opened = open_store(store)
    quality = shuffle_quality(opened, batch_size=6, shuffle_buffer=window, block=block)
    spec = order_of(opened, window, 0, 1, block)
    different = []
    for epoch in range(200):
        ids = EpochOrder(spec, epoch).ids(0, 60)
        ends = np.cumsum(opened.container_sizes)
        shard = np.searchsorted(ends, ids, "right")
        blocks = shard * 1000 + (ids - (ends - opened.container_sizes)[shard]) // block
        different += [len(set(blocks[start : start + 6].tolist())) for start in range(0, 60, 6)]
    assert np.mean(different) == pytest.approx(quality.blocks_per_batch, rel=0.12)
    assert quality.blocks_per_batch <= quality.blocks_at_best + 1e-9
    assert quality.same_block >= quality.same_block_at_best


def test_the_stored_order_is_hardly_mixed(store: Path) -> None:
    quality = shuffle_quality(open_store(store), batch_size=4, shuffle_buffer=0, block=8)
    assert (quality.blocks_per_batch, quality.shuffle_buffer) == (1.375, 0)
    assert quality.stored_shuffled
