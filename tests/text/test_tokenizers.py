"""Promises about tokenizers: ids are those of the library, and never more than what was asked for."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from packer import tokenized
from packer.cli.main import cli
from packer.tokens.tokenizer import open_tokenizer
from packer_reader.errors import UsageError
from tests.text.documents import built, words, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    write(folder / "d.jsonl", words(300))
    command = ["tokenizer", "train", str(folder / "d.jsonl"), "--vocab", "400", "-o", str(folder / "tok.json")]
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert "ids from 300 documents" in done.output
    return folder / "tok.json"


def test_training_gives_the_same_bytes_every_time(trained: Path, tmp_path: Path) -> None:
    source = str(trained.parent / "d.jsonl")
    program = (
        f"from packer.tokens.train import train_tokenizer as t; t([{source!r}], {str(tmp_path / 'b.json')!r}, 400)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"RAYON_NUM_THREADS": "2", "PATH": ""})
    assert (tmp_path / "b.json").read_bytes() == trained.read_bytes()
    again = CliRunner().invoke(cli, ["tokenizer", "train", source, "--vocab", "400", "-o", str(trained)])
    assert again.exit_code == 1
    assert "exists already" in again.output


@pytest.mark.parametrize("container", ["tar", "lmdb"])
def test_ids_are_the_librarys(trained: Path, container: Any, tmp_path: Path) -> None:
    documents = [*words(40), "<|endoftext|> inside", "nul \0, tab\t, 😀"]
    store = built(write(tmp_path / "d.jsonl", documents), tmp_path / "o", tokenized(str(trained)), container=container)
    library = Tokenizer.from_file(str(trained))
    library.encode_special_tokens = True
    wanted = sorted([*library.encode(text, add_special_tokens=False).ids, 0] for text in documents)
    assert sorted(sample["tokens"].tolist() for sample in store) == wanted
    name = "tokenizer.json"
    assert (tmp_path / "o" / name).read_bytes() == trained.read_bytes()
    text = store.manifest.recipe["text"]
    assert (text["eos"], text["vocabulary"]) == (0, library.get_vocab_size())
    back = open_tokenizer("tokenizers", str(tmp_path / "o" / name), text["digest"])
    assert sorted(back.decode(sample["tokens"].tolist()[:-1]) for sample in store) == sorted(documents)


def test_special_tokens_in_documents_are_text_unless_asked_for(trained: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "d.jsonl", ["a<|endoftext|>b"])
    plain = built(source, tmp_path / "plain", tokenized(str(trained), eos=None))[0]["tokens"].tolist()
    special = built(source, tmp_path / "special", tokenized(str(trained), eos=None, allow_special=True))[0][
        "tokens"
    ].tolist()
    assert 0 not in plain
    assert special.count(0) == 1


def test_a_tokenizers_own_habits_are_not_taken_over(trained: Path, tmp_path: Path) -> None:
    """Truncation, padding and tokens of a post-processor would lose and add ids."""
    library = Tokenizer.from_file(str(trained))
    library.enable_truncation(3)
    library.enable_padding(length=50)
    library.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    library.save(str(tmp_path / "odd.json"))
    source = write(tmp_path / "d.jsonl", words(5))
    odd = built(source, tmp_path / "odd", tokenized(str(tmp_path / "odd.json")))
    plain = built(source, tmp_path / "plain", tokenized(str(trained)))
    assert [s["tokens"].tolist() for s in odd] == [s["tokens"].tolist() for s in plain]


@pytest.mark.parametrize(("bos", "eos", "first", "last"), [(1, 2, 1, 2), ("<s>", "</s>", 1, 2), (None, None, 4, 4)])
def test_ids_around_documents(bos: Any, eos: Any, first: int, last: int, tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "other": 3, "word": 4}
    library = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_special_tokens(["<s>", "</s>"])
    library.save(str(tmp_path / "t.json"))
    source = write(tmp_path / "d.jsonl", ["word word", "word other word"])
    store = built(source, tmp_path / "o", tokenized(str(tmp_path / "t.json"), bos=bos, eos=eos))
    for sample in store:
        assert (sample["tokens"][0], sample["tokens"][-1]) == (first, last)
    assert tokenized(str(tmp_path / "t.json")).eos == 2


@pytest.mark.parametrize(("added", "dtype"), [(0, "uint16"), (1, "uint32")])
def test_16_bits_only_where_every_id_fits(added: int, dtype: str, tmp_path: Path) -> None:
    """Ids of added tokens count too, which the library's size without them leaves out."""
    library = Tokenizer(models.WordLevel({f"w{number}": number for number in range(1 << 16)}, unk_token="w0"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_tokens([AddedToken(f"extra{number}") for number in range(added)])
    library.save(str(tmp_path / "t.json"))
    source = write(tmp_path / "d.jsonl", [f"w65535 w1 {'extra0' if added else 'w2'}"])
    text = tokenized(str(tmp_path / "t.json"))
    store = built(source, tmp_path / "o", text)
    assert (text.dtype, store[0]["tokens"].dtype) == (dtype, np.dtype(dtype))
    assert store[0]["tokens"].tolist() == [65535, 1, 65536 if added else 2]


def test_sentencepiece_models(tmp_path: Path) -> None:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words(300)), model_writer=model, vocab_size=200, hard_vocab_limit=False, minloglevel=9
    )
    (tmp_path / "t.model").write_bytes(model.getvalue())
    library = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    documents = words(20)
    store = built(write(tmp_path / "d.jsonl", documents), tmp_path / "o", tokenized(str(tmp_path / "t.model")))
    wanted = sorted([*library.encode(text), library.eos_id()] for text in documents)
    assert sorted(sample["tokens"].tolist() for sample in store) == wanted
    assert (tmp_path / "o" / "tokenizer.model").exists()
    with pytest.raises(UsageError, match="sentencepiece takes no special tokens"):
        tokenized(str(tmp_path / "t.model"), allow_special=True)


def test_a_tokenizer_that_makes_nothing_of_a_document(tmp_path: Path) -> None:
    library = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    library.normalizer = normalizers.Replace("x", "")
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.decoder = decoders.WordPiece()
    library.save(str(tmp_path / "t.json"))
    store = built(write(tmp_path / "d.jsonl", ["a a", "xxx"]), tmp_path / "o", tokenized(str(tmp_path / "t.json")))
    assert store.manifest.counts == {"found": 2, "written": 1, "skipped": 1}
    assert json.loads((tmp_path / "o" / "errors.jsonl").read_text())["class"] == "empty"


@pytest.mark.parametrize("content", ["", "{}", "no json"])
def test_files_that_are_no_tokenizers_are_refused(content: str, tmp_path: Path) -> None:
    for name in ("t.json", "t.model"):
        (tmp_path / name).write_text(content)
        with pytest.raises(UsageError, match="is no (tokenizer.json|sentencepiece model)"):
            tokenized(str(tmp_path / name))


@pytest.mark.parametrize(
    ("package", "name"), [("tokenizers", "t.json"), ("sentencepiece", "t.model"), ("zstandard", "d.zst")]
)
def test_a_missing_extra_is_named(package: str, name: str, trained: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "d.jsonl.zst" if package == "zstandard" else tmp_path / "d.jsonl", words(3))
    (tmp_path / name).write_bytes(trained.read_bytes())
    options = [] if package == "zstandard" else ["--tokenizer", str(tmp_path / name)]
    program = (
        f"import sys; sys.modules[{package!r}] = None; sys.argv[0] = 'packer'; from packer.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "build", str(source), str(tmp_path / "o"), *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode in {1, 2}
    assert f"needs {package}: pip install 'packer-data[text]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("model", ["unigram", "wordlevel"])
def test_documents_that_spell_tokens_of_the_model_are_named(model: str, tmp_path: Path) -> None:
    """Such models find special tokens among their pieces, whatever the library is told."""
    library: Any
    if model == "unigram":
        library = Tokenizer(models.Unigram([("<unk>", 0.0), ("</s>", -1.0), ("a", -2.0), ("b", -2.0), (" ", -2.0)], 0))
    else:
        library = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2, "b": 3}, unk_token="<unk>"))
        library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens(["<unk>", "</s>"])
    library.save(str(tmp_path / "t.json"))
    source = write(tmp_path / "d.jsonl", ["a b", "a </s> b", "unknown a"])
    store = built(source, tmp_path / "o", tokenized(str(tmp_path / "t.json")))
    assert store.manifest.counts == {"found": 3, "written": 2, "skipped": 1}
    line = json.loads((tmp_path / "o" / "errors.jsonl").read_text())
    assert line["name"] == "d.jsonl:2"
    assert "it spells '</s>'" in line["reason"]
    assert all(1 not in sample["tokens"][:-1] for sample in store)
    allowed = built(source, tmp_path / "p", tokenized(str(tmp_path / "t.json"), allow_special=True))
    assert sum(sample["tokens"].tolist().count(1) for sample in allowed) == 4


def test_digits_are_an_id_also_where_they_are_a_token(trained: Path) -> None:
    assert Tokenizer.from_file(str(trained)).token_to_id("0") != 0
    assert tokenized(str(trained), eos="0", bos="7").eos == 0
    assert tokenized(str(trained), eos="0", bos="7").bos == 7
    with pytest.raises(UsageError, match="--bos is '9999"):
        tokenized(str(trained), bos="9" * 5000)


def test_another_file_under_the_same_name_is_noticed(trained: Path, tmp_path: Path) -> None:
    path, other = tmp_path / "t.json", Tokenizer.from_file(str(trained))
    path.write_bytes(trained.read_bytes())
    source = write(tmp_path / "d.jsonl", ["the cat"])
    text = tokenized(str(path))
    built(source, tmp_path / "o", text)
    other.add_tokens(["cat"])
    other.save(str(path))
    store = built(source, tmp_path / "p", tokenized(str(path)))
    assert store[0]["tokens"].tolist() == [*other.encode("the cat").ids, 0]
    assert other.token_to_id("cat") in store[0]["tokens"]
    open_tokenizer.cache_clear()
    with pytest.raises(UsageError, match="has changed since the build began"):
        built(source, tmp_path / "q", text)


def test_training_says_what_it_could_not_use(tmp_path: Path) -> None:
    source, out = write(tmp_path / "d.jsonl", words(20)), str(tmp_path / "t.json")
    done = CliRunner().invoke(cli, ["tokenizer", "train", str(source), "--text-field", "content", "-o", out])
    assert done.exit_code == 1
    assert (
        "none of 20 documents can be read ('d.jsonl:1': it has no 'content' (--text-field); its keys are 'text', 'n')"
        in done.output
    )
    assert not (tmp_path / "t.json").exists()
    with source.open("a") as file:
        file.write("no JSON\n")
    done = CliRunner().invoke(cli, ["tokenizer", "train", str(source), "--vocab", "5000", "-o", out])
    assert done.exit_code == 0
    assert "1 skipped ('d.jsonl:21': the line is not JSON)" in done.output
    assert "fewer ids than the 5,000 asked for" in done.output
