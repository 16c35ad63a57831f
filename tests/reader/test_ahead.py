"""Reading ahead: what comes soon is fetched, and nothing is asked for that is in memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import packer_reader
from packer import Job, Recipe, build
from packer_reader import StreamDataset
from packer_reader.ahead import ReadAhead
from packer_reader.batch import BatchReader
from packer_reader.view import View
from tests.conftest import make_serials

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """A store whose shards are not in memory."""
    build(str(make_serials(tmp_path / "src", 200)), str(tmp_path / "o"), Recipe(encode="raw", shard_bytes=10**5), Job())
    os.sync()
    for path in (tmp_path / "o").glob("*.tar"):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
    return tmp_path / "o"


class Counting(BatchReader):
    """A reader that counts how often it is asked."""

    asked = 0

    def announce(self, numbers: Any) -> None:
        self.asked += 1
        super().announce(numbers)


def test_it_rests_when_there_is_nothing_to_fetch(cold: Path) -> None:
    store = packer_reader.open(cold)
    store.read(np.arange(200), [0])  # now all is in memory
    reader = Counting(store, View(), 0)
    ahead = ReadAhead(reader)
    for _ in range(33):
        ahead.announce(np.arange(50))
    assert reader.asked == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cold_store_is_read_whole(workers: int, cold: Path) -> None:
    from torch.utils.data import DataLoader

    ds = StreamDataset(cold, batch_size=16, shuffle_buffer=40, with_id=True)
    assert sorted(n for b in DataLoader(ds, batch_size=None, num_workers=workers) for n in b["id"].tolist()) == list(
        range(200)
    )
