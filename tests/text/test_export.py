"""Promises about export: other trainers find the documents where their formats say."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from packer import tokenized
from packer.cli.main import cli
from tests.faults import flip_byte
from tests.text.documents import END, built, words, write

if TYPE_CHECKING:
    from pathlib import Path


def megatron(base: Path) -> list[list[int]]:
    """Documents as Megatron-LM's `IndexedDataset` reads them."""
    data = base.with_name(f"{base.name}.idx").read_bytes()
    assert data[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, documents = struct.unpack_from("<QBQQ", data, 9)
    assert version == 1
    dtype = {4: np.int32, 8: np.uint16}[code]
    place = 9 + 25
    sizes = np.frombuffer(data, np.int32, sequences, place)
    pointers = np.frombuffer(data, np.int64, sequences, place + 4 * sequences)
    borders = np.frombuffer(data, np.int64, documents, place + 12 * sequences)
    assert len(data) == place + 12 * sequences + 8 * documents
    assert borders.tolist() == list(range(sequences + 1))
    tokens = base.with_name(f"{base.name}.bin").read_bytes()
    return [
        np.frombuffer(tokens, dtype, size, start).tolist()
        for size, start in zip(sizes.tolist(), pointers.tolist(), strict=True)
    ]


@pytest.mark.parametrize("pack", ["none", "concat", "bestfit"])
@pytest.mark.parametrize("container", ["tar", "lmdb"])
def test_megatron_and_flat_files_hold_all_tokens(pack: Any, container: Any, tmp_path: Path) -> None:
    documents = words(60)
    text = tokenized(pack=pack, seq_len=None if pack == "none" else 200)
    store = built(write(tmp_path / "d.jsonl", documents), tmp_path / "o", text, container=container)
    for form, name in (("megatron", "m"), ("bin", "f.bin")):
        command = ["export", str(tmp_path / "o"), "--to", form, "-o", str(tmp_path / name)]
        done = CliRunner().invoke(cli, command, catch_exceptions=False)
        assert done.exit_code == 0
    again = ["export", str(tmp_path / "o"), "--to", "megatron", "-o", str(tmp_path / "n.bin")]
    assert CliRunner().invoke(cli, again, catch_exceptions=False).exit_code == 0
    assert (tmp_path / "n.bin").read_bytes() == (tmp_path / "m.bin").read_bytes()
    flat = np.fromfile(tmp_path / "f.bin", np.uint16).tolist()
    found = megatron(tmp_path / "m")
    assert [token for one in found for token in one] == flat
    if pack == "none":
        assert found == [sample["tokens"].tolist() for sample in store]
    whole = sorted([*text.encode(), END] for text in documents)
    assert sum(map(len, found)) == sum(map(len, whole))
    if pack != "bestfit":
        starts = [0, *(place + 1 for place, token in enumerate(flat) if token == END)]
        assert sorted(flat[a:b] for a, b in pairwise(starts)) == whole


def test_large_vocabularies_become_int32_for_megatron(tmp_path: Path) -> None:
    library = Tokenizer(models.WordLevel({f"w{number}": number for number in range(1 << 16)}, unk_token="w0"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_tokens([AddedToken("extra")])
    library.save(str(tmp_path / "t.json"))
    source = write(tmp_path / "d.jsonl", ["w1 extra w65535"])
    built(source, tmp_path / "o", tokenized(str(tmp_path / "t.json")))
    command = ["export", str(tmp_path / "o"), "--to", "megatron", "-o", str(tmp_path / "m")]
    assert CliRunner().invoke(cli, command).exit_code == 0
    assert megatron(tmp_path / "m") == [[1, 65536, 65535]]


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    from packer import Job, Recipe, build
    from tests.conftest import make_serials

    build(str(make_serials(tmp_path / "img", 3)), str(tmp_path / "pictures"), Recipe(), Job(workers=1))
    built(write(tmp_path / "d.jsonl", words(3)), tmp_path / "o")
    (tmp_path / "there").write_bytes(b"")
    for store, form, out, message in (
        ("pictures", "bin", "x", "holds no tokens"),
        ("o", "hdf5", "x", "--to is 'hdf5'"),
        ("o", "bin", "there", "exists already"),
        ("o", "bin", "no/folder/x", "check the path"),
        ("o", "megatron", ".", "names a folder"),
    ):
        done = CliRunner().invoke(cli, ["export", str(tmp_path / store), "--to", form, "-o", str(tmp_path / out)])
        assert done.exit_code in {1, 2}, done.output
        assert message in done.output
        assert len(done.output.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.jsonl", "img", "o", "pictures", "there"]


@pytest.mark.parametrize("pack", ["none", "concat"])
@pytest.mark.parametrize("container", ["tar", "lmdb"])
def test_damaged_tokens_are_not_exported(pack: Any, container: Any, tmp_path: Path) -> None:
    text = tokenized(pack=pack, seq_len=None if pack == "none" else 200)
    store = built(write(tmp_path / "d.jsonl", ["unmistakable " * 30] * 9), tmp_path / "o", text, container=container)
    data = tmp_path / "o" / store.shard_name(0)
    place = data.read_bytes().index("mistakable".encode("utf-16-le"))
    flip_byte(data, place)
    done = CliRunner().invoke(cli, ["export", str(tmp_path / "o"), "--to", "bin", "-o", str(tmp_path / "x")])
    assert done.exit_code == 4
    assert "is damaged at key" in done.output
    assert not (tmp_path / "x").exists()
