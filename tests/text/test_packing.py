"""Promises about packing: every token is there once, boundaries are kept, and no document that fits is cut."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import webdataset

import packer_reader
from packer import Job, Recipe, build, tokenized
from packer.sinks import lmdb as lmdb_sink
from packer_reader.check import check_store
from packer_reader.format.fields import ROWS
from tests.faults import flip_byte, tree
from tests.text.documents import END, built, words, write

if TYPE_CHECKING:
    from pathlib import Path

    from packer_reader import Store


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("corpus") / "d.jsonl", words(400, seed=3, mean=40))


def pieces_of(store: Store) -> list[bytes]:
    """What lies between boundaries, in stored order; padding is looked at."""
    found = []
    for sample in store:
        tokens, bounds, valid = sample["tokens"], sample["cu_seqlens"], sample["n_valid"]
        assert bounds[0] == 0
        assert bounds[-1] == valid
        assert (np.diff(bounds) > 0).all()
        assert (tokens[valid:] == END).all()
        found += [tokens[start:stop].astype("<u2").tobytes() for start, stop in pairwise(bounds.tolist())]
    return found


@pytest.mark.parametrize("container", ["tar", "lmdb"])
@pytest.mark.parametrize("pack", ["concat", "bestfit"])
def test_no_token_is_lost(pack: Any, container: Any, corpus: Path, tmp_path: Path) -> None:
    text = tokenized(pack=pack, seq_len=300)
    store = built(corpus, tmp_path / "o", text, container=container, shard_bytes=40_000)
    assert list(check_store(tmp_path / "o", full=True)) == []
    documents = [np.append(np.frombuffer(one.encode(), np.uint8), END).astype("<u2") for one in words(400, 3, 40)]
    pieces = pieces_of(store)
    if pack == "concat":
        assert store.manifest.statistics["tokens"]["padding"] == 300 * len(store) - sum(map(len, documents))
        whole = b"".join(pieces)
        cut = whole.split(np.uint16(END).tobytes())  # no text has the end of text in it
        assert sorted(cut) == sorted([b"", *(one[:-1].tobytes() for one in documents)])
    else:
        wanted = [one[start : start + 300].tobytes() for one in documents for start in range(0, len(one), 300)]
        assert sorted(pieces) == sorted(wanted)
    sums = store.manifest.statistics["tokens"]
    assert (sums["documents"], sums["tokens"]) == (400, sum(map(len, documents)))
    assert sums["sequences"] == len(store) == store.manifest.samples
    assert store.manifest.field("tokens").codec == ROWS  # type: ignore[union-attr]
    assert store.manifest.counts == {"found": 400, "written": 400, "skipped": 0}


@pytest.mark.parametrize("pack", ["none", "concat", "bestfit"])
def test_bytes_do_not_depend_on_workers_nor_contents_on_the_container(pack: Any, corpus: Path, tmp_path: Path) -> None:
    text = tokenized(pack=pack, seq_len=None if pack == "none" else 128)
    for name, workers in (("a", 1), ("b", 2), ("a.lmdb", 1), ("b.lmdb", 2)):
        recipe = Recipe(container="lmdb" if "." in name else "tar", text=text, unit=50, shard_bytes=30_000)
        runner = "processes" if workers > 1 else "serial"
        build(str(corpus), str(tmp_path / name), recipe, Job(workers=workers, runner=runner))
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert tree(tmp_path / "a.lmdb") == tree(tmp_path / "b.lmdb")
    digests = {packer_reader.open(tmp_path / name).manifest.content_digest for name in ("a", "a.lmdb")}
    assert len(digests) == 1


def test_shards_are_cut_between_blocks(corpus: Path, tmp_path: Path) -> None:
    text = tokenized(pack="concat", seq_len=64)
    store = built(corpus, tmp_path / "o", text, shard_bytes=20_000)
    sizes = [path.stat().st_size for path in sorted((tmp_path / "o").glob("*.tar"))]
    assert len(sizes) > 3
    assert max(sizes) <= 20_000
    assert sum(store.container_sizes) == len(store) > store.manifest.records > len(sizes)


@pytest.mark.usefixtures("careless_libraries")
def test_webdataset_reads_blocks_as_they_are(corpus: Path, tmp_path: Path) -> None:
    store = built(corpus, tmp_path / "o", tokenized(pack="concat", seq_len=128))
    shards = [str(path) for path in sorted((tmp_path / "o").glob("*.tar"))]
    rows = []
    for record in webdataset.WebDataset(shards, shardshuffle=False, empty_check=False).decode():
        assert record["tokens.npy"].shape == (len(record["n_valid.npy"]), 128)
        ends = np.flatnonzero(record["cu_seqlens.npy"] == 0)
        assert len(ends) == len(record["tokens.npy"])
        rows.append(record["tokens.npy"])
    assert (np.concatenate(rows) == np.stack([sample["tokens"] for sample in store])).all()


@pytest.mark.parametrize("container", ["tar", "lmdb"])
def test_a_flipped_byte_is_found(container: Any, corpus: Path, tmp_path: Path) -> None:
    built(corpus, tmp_path / "o", tokenized(pack="bestfit", seq_len=128), container=container)
    data = next((tmp_path / "o").glob("*.tar" if container == "tar" else "data.mdb"))
    size = data.stat().st_size
    for place in np.random.default_rng(0).integers(0, size, 12).tolist():
        flip_byte(data, place)
        assert list(check_store(tmp_path / "o", full=True)) != []
        flip_byte(data, place)
    assert list(check_store(tmp_path / "o", full=True)) == []


def test_the_manifest_says_what_a_model_must_know(corpus: Path, tmp_path: Path) -> None:
    built(corpus, tmp_path / "o", tokenized(pack="bestfit", seq_len=128, bos=None, eos=256))
    document = json.loads((tmp_path / "o" / "manifest.json").read_text())
    text = document["recipe"]["text"]
    assert (text["tokenizer"], text["vocabulary"], text["bos"], text["eos"], text["pad"]) == (
        "bytes",
        257,
        None,
        256,
        256,
    )
    assert set(document["statistics"]["tokens"]) == {"documents", "tokens", "sequences", "cut", "padding"}
    assert "file" not in text


def test_sequences_longer_than_everything(tmp_path: Path) -> None:
    source = write(tmp_path / "d.jsonl", words(5))
    for pack in ("concat", "bestfit"):
        store = built(source, tmp_path / pack, tokenized(pack=pack, seq_len=100_000))
        assert len(store) == 1
        assert store[0]["n_valid"] == sum(len(text.encode()) + 1 for text in words(5))
        assert len(store[0]["cu_seqlens"]) == 6


@pytest.mark.parametrize("container", ["tar", "lmdb"])
def test_arrays_of_blocks_have_the_shapes_of_their_kind(container: Any, tmp_path: Path) -> None:
    """Also where all sequences happen to have as many documents."""
    source = write(tmp_path / "d.jsonl", ["a" * 31] * 64)
    store = built(source, tmp_path / "o", tokenized(pack="concat", seq_len=32), container=container)
    assert {len(sample["cu_seqlens"]) for sample in store} == {2}
    data = (tmp_path / "o" / store.shard_name(0)).read_bytes()
    headers = [np.lib.format.read_array_header_1_0(io.BytesIO(part[2:])) for part in data.split(b"\x93NUMPY")[1:]]
    assert [shape for shape, _, _ in headers] == [(64, 32), (128,), (64,)]


def test_runs_of_the_index_hold_whole_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_sink, "INDEX_RUN", 10_000)
    source = write(tmp_path / "d.jsonl", words(4000, mean=40))
    store = built(source, tmp_path / "o", tokenized(pack="concat", seq_len=32), container="lmdb")
    assert store.manifest.shards > 2
    blocks = [set(np.array(store.index(shard).value).tolist()) for shard in range(store.manifest.shards)]
    assert sum(map(len, blocks)) == len(set().union(*blocks))
