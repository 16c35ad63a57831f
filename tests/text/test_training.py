"""The whole way: Python's own sources to tokens, and a small language model that learns them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.nn import functional

from packer.cli.main import cli
from packer_reader import StreamDataset, document_ids, loader, position_ids


class TinyModel(nn.Module):
    """One block of causal attention that sees its own document only."""

    def __init__(self, vocabulary: int, length: int, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor, places: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(places)
        query, key, value = self.mix(x).chunk(3, -1)
        mask = (documents[:, :, None] == documents[:, None, :]).tril()
        return self.out(x + functional.scaled_dot_product_attention(query, key, value, mask))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["o.lmdb", pytest.param("o", marks=pytest.mark.slow)])
def test_a_language_model_learns_from_packed_sequences(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    library = Path(os.__file__).parent
    (tmp_path / "src").mkdir()
    for path in sorted(library.glob("*.py"))[:25]:
        (tmp_path / "src" / f"{path.stem}.txt").write_bytes(path.read_bytes())
    tokenizer = str(tmp_path / "tok.json")
    for command in (
        ["tokenizer", "train", str(tmp_path / "src"), "--vocab", "400", "-o", tokenizer],
        [
            "build",
            str(tmp_path / "src"),
            str(tmp_path / name),
            "--tokenizer",
            tokenizer,
            "--pack",
            "bestfit",
            "--seq-len",
            "65",
        ],
    ):
        done = CliRunner().invoke(cli, command, catch_exceptions=False)
        assert done.exit_code == 0, done.output
    ds = StreamDataset(tmp_path / name, batch_size=16, seed=1)
    model = TinyModel(int(ds.store.manifest.recipe["text"]["vocabulary"]), 64)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for batch in loader(ds, num_workers=1):
        tokens, documents = batch["tokens"], document_ids(batch["cu_seqlens"], 65)
        places = position_ids(batch["cu_seqlens"], 65)
        wanted = torch.where(documents[:, 1:] == documents[:, :-1], tokens[:, 1:], -100)
        logits = model(tokens[:, :-1], places[:, :-1], documents[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == 60:
            break
    assert len(losses) == 60
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
