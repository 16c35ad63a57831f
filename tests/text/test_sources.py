"""Promises about documents: every one is there, under its line's number, whatever it came in."""

from __future__ import annotations

import json
import os
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import packer_reader
from packer import Job, Recipe, build, resources, tokenized
from packer.cli.main import cli
from packer.sources.detect import detect
from packer.sources.text import Documents
from packer.tokens.window import PICTURES
from packer_reader.errors import SourceError, UsageError
from tests.faults import tree
from tests.text.documents import built, texts_of, words, write

FORMS = ["d.jsonl", "d.jsonl.gz", "d.jsonl.zst", "d.csv", "d.tsv", "d.parquet", "d.txt", "d.txt.gz", "d.txt.zst"]


@pytest.mark.parametrize("container", ["tar", "lmdb"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_documents(form: str, container: Any, tmp_path: Path) -> None:
    documents = words(70, seed=1)
    source = write(tmp_path / form, documents)
    store = built(source, tmp_path / "o", tokenized(separator="line"), container=container)
    assert texts_of(store) == sorted(documents)
    first = 2 if form.endswith((".csv", ".tsv")) else 0 if form.endswith(".parquet") else 1
    for place in range(len(store)):
        line = int(store.source(place).rpartition(":")[2])
        assert texts_of_one(store, place) == documents[line - first]


def texts_of_one(store: Any, place: int) -> str:
    return bytes(store[place]["tokens"].tolist()[:-1]).decode()


def test_many_files_and_folders_at_once(tmp_path: Path) -> None:
    documents = [words(9, seed=number) for number in range(4)]
    write(tmp_path / "a" / "x.jsonl", documents[0])
    write(tmp_path / "a" / "deep" / "y.jsonl.gz", documents[1])
    write(tmp_path / "b.csv", documents[2])
    write(tmp_path / "c" / "z.parquet", documents[3])
    store = built([tmp_path / "a", tmp_path / "b.csv", tmp_path / "c"], tmp_path / "o")
    assert texts_of(store) == sorted(text for part in documents for text in part)
    assert {store.source(place).split(":")[0] for place in range(len(store))} == {
        "x.jsonl",
        "deep/y.jsonl.gz",
        "b.csv",
        "z.parquet",
    }


@pytest.mark.parametrize("separator", ["file", "line", "blank"])
def test_text_files_end_documents_as_asked(separator: Any, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "a.txt").write_bytes(b"one\ntwo\r\n\n \n\xe2\x80\xa8three\x0cfour\n\nfive")
    (tmp_path / "s" / "b.txt").write_bytes(b"\xef\xbb\xbfsix\n\n")
    store = built(tmp_path / "s", tmp_path / "o", tokenized(separator=separator))
    found = {store.source(place): texts_of_one(store, place) for place in range(len(store))}
    if separator == "file":
        assert found == {"a.txt": "one\ntwo\r\n\n \n\u2028three\x0cfour\n\nfive", "b.txt": "six\n\n"}
    elif separator == "line":
        assert found == {
            "a.txt:1": "one",
            "a.txt:2": "two\r",
            "a.txt:5": "\u2028three\x0cfour",
            "a.txt:7": "five",
            "b.txt:1": "six",
        }
    else:
        assert found == {
            "a.txt:1": "one\ntwo\r",
            "a.txt:5": "\u2028three\x0cfour",
            "a.txt:7": "five",
            "b.txt:1": "six",
        }


def test_bad_lines_are_named_by_their_numbers(tmp_path: Path) -> None:
    lines = [
        b'{"text": "good"}',
        b"",
        b'{"text": "half',
        b"[1]",
        b'{"other": 1}',
        b'{"text": null}',
        b'{"text": 7}',
        b'{"text": "bad \xff"}',
        b'{"text": "half a pair \\ud83d"}',
        b'{"text": "nul \\u0000 and pair \\ud83d\\ude00"}',
        b'{"text": "  \\n"}',
        b'{"text": "' + b"x" * 3000 + b'"}',
        b'{"text": "cut',
    ]
    (tmp_path / "d.jsonl").write_bytes(b"\n".join(lines))
    report = build(
        str(tmp_path / "d.jsonl"), str(tmp_path / "o"), Recipe(text=tokenized(max_document=2000)), Job(workers=1)
    )
    assert (report.found, report.written) == (12, 2)
    store = packer_reader.open(tmp_path / "o")
    assert texts_of(store) == ["good", "nul \0 and pair 😀"]
    said = [json.loads(line) for line in (tmp_path / "o" / "errors.jsonl").read_text().splitlines()]
    assert {(line["name"].rpartition(":")[2], line["class"]) for line in said} == {
        ("3", "corrupt"),
        ("4", "bad-row"),
        ("5", "no-text"),
        ("6", "no-text"),
        ("7", "no-text"),
        ("8", "unsupported"),
        ("9", "unsupported"),
        ("11", "empty"),
        ("12", "too-large"),
        ("13", "corrupt"),
    }


def test_what_is_no_unicode_is_replaced_on_request(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_bytes(b'{"text": "bad \xff"}\n{"text": "half \\ud83d."}\n')
    store = built(tmp_path / "d.jsonl", tmp_path / "o", tokenized(errors="replace"))
    assert texts_of(store) == ["bad �", "half �."]


@pytest.mark.parametrize("form", ["d.jsonl.gz", "d.jsonl.zst", "d.parquet"])
def test_a_file_cut_short_is_refused_as_a_whole(form: str, tmp_path: Path) -> None:
    path = write(tmp_path / form, words(500))
    path.write_bytes(path.read_bytes()[:-200])
    done = CliRunner().invoke(cli, ["build", str(path), str(tmp_path / "o"), "--from", "text"])
    assert done.exit_code == 1
    assert done.output.splitlines()[-1].startswith(f"error: {form!r}") or "is no Parquet file" in done.output
    assert not (tmp_path / "o").exists()


def test_rows_without_text_are_named(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": ["a", None, "c"]}), tmp_path / "d.parquet")
    (tmp_path / "e.csv").write_text("text,n\nfour,1\n,2\n", encoding="utf-8")
    report = build(
        [str(tmp_path / "d.parquet"), str(tmp_path / "e.csv")],
        str(tmp_path / "o"),
        Recipe(text=tokenized()),
        Job(workers=1),
    )
    assert (report.found, report.written, report.errors) == (5, 3, {"no-text": 2})
    lines = (tmp_path / "o" / "errors.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["d.parquet:1", "e.csv:3"]


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    write(tmp_path / "d.csv", ["a"])
    with pytest.raises(SourceError, match="has no column 'content', it has id, text: name it by --text-field"):
        built(tmp_path / "d.csv", tmp_path / "o", tokenized(field="content"))


def test_text_is_told_from_lists_of_images(tmp_path: Path) -> None:
    write(tmp_path / "text" / "a.jsonl", ["x"])
    write(tmp_path / "text" / "deep" / "b.txt", ["x"])
    (tmp_path / "l.jsonl").write_text('{"path": "a.png", "text": "a caption"}\n')
    (tmp_path / "c.csv").write_text("file_name,text\na.png,b\n")
    (tmp_path / "t.csv").write_text("text,source\nb,web\n")
    assert detect([str(tmp_path / "text")]).type == "text"
    assert detect([str(tmp_path / "text" / "a.jsonl"), str(tmp_path / "t.csv")]).type == "text"
    assert detect([str(tmp_path / "l.jsonl")]).type == "metadata"
    assert detect([str(tmp_path / "c.csv")]).type == "metadata"
    assert detect([str(tmp_path / "c.csv")], text=tokenized()).type == "text"
    for number in range(300):  # captions or YOLO's labels: many texts that sort before a picture
        write(tmp_path / "captions" / "a" / f"{number}.txt", ["x"])
    (tmp_path / "captions" / "pictures").mkdir()
    (tmp_path / "captions" / "pictures" / "0.jpg").write_bytes(b"")
    assert detect([str(tmp_path / "captions")]).type == "imagefolder"
    (tmp_path / "about").mkdir()
    (tmp_path / "about" / "README.txt").write_text("what this is")
    assert detect([str(tmp_path / "about")]).type == "imagefolder"
    (tmp_path / "text" / "pic.png").write_bytes(b"")
    assert detect([str(tmp_path / "text")]).type == "imagefolder"


def test_names_do_not_depend_on_where_sources_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sources of one name differ by their paths below what both lie in, however these were typed."""
    for place in ("here", "elsewhere/deep"):
        write(tmp_path / place / "a" / "x" / "d.jsonl", words(40))
        write(tmp_path / place / "b" / "x" / "d.jsonl", words(40))
    monkeypatch.chdir(tmp_path / "here")
    relative = Documents(("a/x", "b/x"), tokenized())
    absolute = Documents((f"{tmp_path}/elsewhere/deep/a/x", f"{tmp_path}/elsewhere/deep/b/x"), tokenized())
    assert relative.prefixes == absolute.prefixes == (b"a/x/", b"b/x/")


def test_lists_of_images_are_no_text(tmp_path: Path) -> None:
    """Whatever their columns are called, and wherever among the first rows a picture is named."""
    (tmp_path / "c.csv").write_text("photo,text\na.jpg,a cat\n")
    with pytest.raises(UsageError, match="no column of .* is known to name the image files"):
        build(str(tmp_path / "c.csv"), str(tmp_path / "o"), Recipe(), Job(workers=1))
    lines = [{"text": "no picture"}, {"text": "a cat", "photo": "a.jpg"}]
    (tmp_path / "l.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert detect([str(tmp_path / "l.jsonl")]).type == "metadata"
    assert detect([str(tmp_path / "l.jsonl")], "text").type == "text"


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    write(tmp_path / "rows" / "d.jsonl", words(3))
    assert "only 'text' of each row is stored, without n" in _said(tmp_path / "rows")
    for label in ("pos", "neg"):
        (tmp_path / "classes" / label).mkdir(parents=True)
        (tmp_path / "classes" / label / "1.txt").write_text(label)
    assert "folders are no labels of text, only its names say neg, pos" in _said(tmp_path / "classes")


def test_files_about_the_data_are_no_documents(tmp_path: Path) -> None:
    """Nor do they keep splits from being seen."""
    write(tmp_path / "s" / "train.jsonl", words(30))
    write(tmp_path / "s" / "val.jsonl", words(7, seed=1))
    (tmp_path / "s" / "README.txt").write_text("what this is")
    (tmp_path / "s" / "LICENSE.txt").write_text("do what you like")
    done = CliRunner().invoke(cli, ["build", str(tmp_path / "s"), str(tmp_path / "o")], catch_exceptions=False)
    assert "left out as being about the data: 'LICENSE.txt', 'README.txt'" in done.output
    assert len(packer_reader.open(tmp_path / "o", split="train")) == 30
    assert len(packer_reader.open(tmp_path / "o", split="val")) == 7
    named = built(tmp_path / "s" / "README.txt", tmp_path / "named")
    assert texts_of(named) == ["what this is"]


def test_folders_beside_text_may_be_links(tmp_path: Path) -> None:
    write(tmp_path / "s" / "a.txt", ["one"])
    (tmp_path / "s" / "self.txt").symlink_to(tmp_path / "s" / "self.txt")
    (tmp_path / "s" / "circle").symlink_to(tmp_path / "s", target_is_directory=True)
    write(tmp_path / "far" / "b.txt", ["two"])
    (tmp_path / "s" / "far").symlink_to(tmp_path / "far", target_is_directory=True)
    report = build(str(tmp_path / "s"), str(tmp_path / "o"), Recipe(), Job(workers=1))
    assert (report.written, report.found) == (2, 3)


def test_folders_that_cannot_be_listed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here ones too deep to be named; a missing permission is the same, but root has them all."""
    write(tmp_path / "s" / "a.txt", ["one"])
    monkeypatch.chdir(tmp_path / "s")
    for _ in range(20):
        Path("d" * 250).mkdir()
        os.chdir("d" * 250)
    os.chdir(tmp_path)
    with pytest.raises(SourceError, match="cannot list .* check the path and its permissions"):
        build(str(tmp_path / "s"), str(tmp_path / "o"), Recipe(), Job(workers=1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["store", "--seq-len", "64", "--pack", "concat"], "is a store already: build from its documents"),
        (["store", "--from", "text"], "is a store already: build from its documents"),
        (["d.jsonl", "--from", "text", "--field", "x=text:y"], "--text-field names that of the text"),
        (["d.jsonl", "img"], "is text, and"),
        (["d.txt", "img", "--from", "imagefolder"], "is text, and no images lie in it"),
    ],
)
def test_text_and_other_things_are_told_apart(arguments: list[str], message: str, tmp_path: Path) -> None:
    from tests.conftest import make_serials

    make_serials(tmp_path / "img", 3)
    write(tmp_path / "d.jsonl", words(3))
    write(tmp_path / "d.txt", words(3))
    built(tmp_path / "d.jsonl", tmp_path / "store")
    paths = [str(tmp_path / name) if (tmp_path / name).exists() else name for name in arguments]
    first = next((place for place, name in enumerate(paths) if name.startswith("--")), len(paths))
    done = CliRunner().invoke(cli, ["build", *paths[:first], str(tmp_path / "o"), *paths[first:]])
    assert done.exit_code in {1, 2}, done.output
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1


def _said(source: Path) -> str:
    """What building a source prints."""
    done = CliRunner().invoke(cli, ["build", str(source), f"{source}.out"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_folders_and_names_of_splits_are_splits(tmp_path: Path) -> None:
    write(tmp_path / "s" / "train" / "a.jsonl", words(30))
    write(tmp_path / "s" / "val.jsonl", words(7, seed=1))
    report = build(str(tmp_path / "s"), str(tmp_path / "o"), Recipe(text=tokenized()), Job(workers=1))
    assert report.splits == {"train": 30, "val": 7}
    assert texts_of(packer_reader.open(tmp_path / "o", split="val")) == sorted(words(7, seed=1))


def test_names_like_splits_that_are_none_are_said(tmp_path: Path) -> None:
    for name in ("train", "val", "extra"):
        write(tmp_path / "d" / f"{name}.jsonl", words(5))
    done = CliRunner().invoke(cli, ["build", str(tmp_path / "d"), str(tmp_path / "o"), "--workers", "1"])
    assert "not all files are: 'train.jsonl', 'val.jsonl' go into one set" in done.output
    (tmp_path / "d" / "extra.jsonl").unlink()
    done = CliRunner().invoke(cli, ["build", str(tmp_path / "d"), str(tmp_path / "p"), "--workers", "1"])
    assert "go into one set" not in done.output


def test_a_share_can_be_held_out(tmp_path: Path) -> None:
    write(tmp_path / "d.jsonl", words(200))
    report = build(str(tmp_path / "d.jsonl"), str(tmp_path / "o"), Recipe(text=tokenized(), val=0.2), Job(workers=1))
    assert sum(report.splits.values()) == 200
    assert 20 < report.splits["val"] < 60


def test_files_that_change_meanwhile_are_noticed(tmp_path: Path) -> None:
    from packer.sources.refs import RefTable, RefWriter
    from packer_reader.errors import SampleError

    path = write(tmp_path / "d.jsonl", words(5))
    source = Documents((str(path),), tokenized())
    (tmp_path / "refs").mkdir()
    with RefWriter(tmp_path / "refs") as refs:
        source.scan(refs)
    write(path, words(6, seed=2))
    with pytest.raises(SampleError, match="has changed since"):
        source.document(RefTable(tmp_path / "refs")[0])
    path.unlink()
    with pytest.raises(SampleError, match="is gone"):
        source.document(RefTable(tmp_path / "refs")[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seq-len", "128"], "--seq-len is about packing"),
        (["--pack", "concat"], "--pack concat needs --seq-len"),
        (["--pack", "concat", "--seq-len", "3"], "tokens from 32"),
        (["--pack", "tight"], "it must be one of none, concat, bestfit"),
        (["--doc-sep", "page"], "--doc-sep is 'page'"),
        (["--encoding-errors", "ignore"], "--encoding-errors is 'ignore'"),
        (["--tokenizer", "gpt2"], "names are never downloaded"),
        (["--eos", "999"], "--eos is 999, the tokenizer's ids are 0 to 256"),
        (["--bos", "<s>"], "--bos is '<s>', it must be an id, or a token"),
        (["--pad", "-1"], "--pad is -1"),
        (["--keep-text", "--pack", "concat", "--seq-len", "64"], "--keep-text stores a text beside its own tokens"),
        (["--resize", "64"], "--resize is about pictures"),
        (["--max-document", "0B"], "--max-document"),
        (["--stratify", "--val", "0.1"], "--stratify is about pictures"),
        (["--classes", "x.txt"], "x.txt"),
    ],
)
def test_options_that_cannot_be_are_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    write(tmp_path / "d.jsonl", words(3))
    done = CliRunner().invoke(cli, ["build", str(tmp_path / "d.jsonl"), str(tmp_path / "o"), *arguments])
    assert done.exit_code in {1, 2}, done.output
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1
    assert not (tmp_path / "o").exists()


def test_every_field_of_a_recipe_is_about_text_or_about_pictures() -> None:
    """An option that does nothing would still be part of a store's digest."""
    both = {"container", "shard_bytes", "sizes", "seed", "shuffle", "val", "group_by", "source_names", "unit", "text"}
    assert {field.name for field in fields(Recipe)} == both | set(PICTURES)
    assert not both & set(PICTURES)


def test_the_memory_of_the_machine_does_not_show_in_stores_of_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "d.jsonl", words(20))
    built(source, tmp_path / "o")
    monkeypatch.setattr(resources, "usable_memory", lambda: 400 << 20)
    built(source, tmp_path / "p")
    assert tree(tmp_path / "o") == tree(tmp_path / "p")


def test_options_about_text_need_text(tmp_path: Path) -> None:
    from tests.conftest import make_serials

    make_serials(tmp_path / "img", 3)
    done = CliRunner().invoke(cli, ["build", str(tmp_path / "img"), str(tmp_path / "o"), "--pack", "none"])
    assert done.exit_code == 1
    assert "there is no document in" in done.output


def test_stores_of_tokens_are_no_source(tmp_path: Path) -> None:
    built(write(tmp_path / "d.jsonl", words(3)), tmp_path / "o")
    with pytest.raises(SourceError, match="is a store of tokens: build from its source again"):
        build(str(tmp_path / "o"), str(tmp_path / "p"), Recipe(), Job(workers=1))
    with pytest.raises(UsageError, match="--reuse copies images"):
        build(str(tmp_path / "d.jsonl"), str(tmp_path / "p"), Recipe(), Job(workers=1, reuse=str(tmp_path / "o")))


def test_planning_says_what_would_be_built(tmp_path: Path) -> None:
    write(tmp_path / "d.jsonl", words(50))
    options = ["--pack", "concat", "--seq-len", "128", "--json"]
    done = CliRunner().invoke(cli, ["plan", str(tmp_path / "d.jsonl"), *options], catch_exceptions=False)
    found = json.loads(done.output)
    assert (found["type"], found["samples"]) == ("text", 50)
    tokens = sum(len(text.encode()) + 1 for text in words(50))
    assert 0.5 * 2 * tokens < found["estimate"]["store_bytes"] < 2 * 2 * tokens


def test_one_huge_line_among_short_ones(tmp_path: Path) -> None:
    documents = ["before", "".join(random.Random(0).choices("abc d", k=3_000_000)), "after"]
    store = built(write(tmp_path / "d.jsonl", documents), tmp_path / "o", shard_bytes=100_000)
    assert texts_of(store) == sorted(documents)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A pipe would be waited for without end."""
    os.mkfifo(tmp_path / "d.jsonl")
    for command in (["build", "--from", "text"], ["build"], ["tokenizer", "train"]):
        paths = [str(tmp_path / "d.jsonl"), *(["-o"] if "train" in command else []), str(tmp_path / "o")]
        done = CliRunner().invoke(cli, [*command, *paths])
        assert done.exit_code == 1
        assert "is neither a file nor a folder" in done.output


def test_damaged_gzip_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl.gz", words(200))
    data = bytearray(path.read_bytes())
    for place in range(40, len(data) - 40, 97):
        data[place] ^= 0x55
    path.write_bytes(data)
    done = CliRunner().invoke(cli, ["build", str(path), str(tmp_path / "o")])
    assert done.exit_code == 1
    assert done.output.startswith("error: 'd.jsonl.gz' cannot be read to its end")
    assert len(done.output.splitlines()) == 1


def test_rows_that_python_cannot_hold_are_named(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    text = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffc")]
    )
    far = pa.array([10**18] * 3, pa.timestamp("us"))
    parquet.write_table(pa.table({"text": text, "far": far}), tmp_path / "d.parquet")
    report = build(str(tmp_path / "d.parquet"), str(tmp_path / "o"), Recipe(text=tokenized()), Job(workers=1))
    assert (report.written, report.errors) == (2, {"bad-row": 1})
    assert texts_of(packer_reader.open(tmp_path / "o")) == ["a", "c"]


@pytest.mark.parametrize("blanks", [10, 70, 5000])
def test_blank_lines_may_be_of_any_length(blanks: int, tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_text(f"a\n{' ' * blanks}\nb\n{' ' * blanks}c\n")
    for separator in ("line", "blank"):
        store = built(tmp_path / "d.txt", tmp_path / separator, tokenized(separator=separator))
        assert len(store) == (3 if separator == "line" else 2)
        assert store.manifest.counts["skipped"] == 0
