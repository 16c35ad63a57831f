"""Manifests: one canonical form, every problem reported, nothing unsound accepted."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from packer_reader.errors import FormatError, VersionError
from packer_reader.format.columns import canonical_json
from packer_reader.format.fields import FieldSpec, sequence_fields
from packer_reader.format.manifest import MAX_MANIFEST, Manifest, manifest_bytes, parse_manifest
from packer_reader.format.problems import problems

HASH = "ab" * 32
MANIFEST = Manifest(
    kind="tar",
    prefix="train",
    split=None,
    samples=3,
    records=3,
    shards=1,
    bytes=999,
    fields=(
        FieldSpec("image", "image", "jpg", "jpg", "uint8", (None, None, 3), (40, 50, 3)),
        FieldSpec("label", "label", "cls", "cls", "int64"),
    ),
    classes=("a", "b\n\udcff"),
    columns={"label": "number", "name": "string"},
    shuffled=True,
    content_digest=HASH,
    recipe={"seed": 0},
    recipe_digest=HASH,
    versions={"numpy": "2"},
    source={"type": "imagefolder"},
    counts={"found": 4, "written": 3, "skipped": 1},
    errors={"empty": 1},
    reencoded={},
    statistics={},
    files={"classes.txt": {"bytes": 4, "sha256": HASH}},
)


def changed(**entries: Any) -> bytes:
    """The manifest with other entries and a hash that fits."""
    document = json.loads(manifest_bytes(MANIFEST)) | entries
    document = {name: value for name, value in document.items() if value is not ...}
    document.pop("manifest_sha256")
    return json.dumps(document | {"manifest_sha256": hashlib.sha256(canonical_json(document)).hexdigest()}).encode()


def test_manifests_come_back() -> None:
    assert parse_manifest(manifest_bytes(MANIFEST)) == MANIFEST
    assert parse_manifest(changed()) == MANIFEST


def test_fields_are_found_by_name() -> None:
    assert MANIFEST.field("label") == MANIFEST.fields[1]
    assert MANIFEST.field("mask") is None
    assert MANIFEST.suffixes == ("jpg", "cls")


def test_the_form_is_canonical_and_readable() -> None:
    data = manifest_bytes(MANIFEST)
    assert data.isascii()
    assert data.endswith(b"}\n")
    assert list(json.loads(data)) == sorted(json.loads(data))


FIELD = {"name": "x", "kind": "image", "suffix": "jpg", "codec": "jpg", "dtype": "", "shape": [], "maximum": []}
SIZED = FIELD | {"dtype": "uint8", "shape": [1, 1, 3], "maximum": [1, 1, 3]}


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        pytest.param({"format": "other"}, "format is 'other'", id="format"),
        pytest.param({"kind": "zip"}, "kind is 'zip'", id="kind"),
        pytest.param({"samples": -1}, "samples is -1", id="negative"),
        pytest.param({"samples": True}, "samples is True", id="boolean count"),
        pytest.param({"samples": 4}, "counts.written is 3, samples is 4", id="counts"),
        pytest.param({"counts": {"found": 9, "written": 3, "skipped": 1}}, "found is not written", id="sum"),
        pytest.param({"classes": ...}, "classes is missing", id="missing"),
        pytest.param({"classes": [1]}, "classes is", id="class names"),
        pytest.param({"prefix": "../x"}, "prefix is '../x'", id="prefix"),
        pytest.param({"columns": {"../x": "number"}}, "columns is", id="column name"),
        pytest.param({"files": {"../x": {"bytes": 1, "sha256": HASH}}}, "files is", id="path up"),
        pytest.param({"files": {"/etc/passwd": {"bytes": 1, "sha256": HASH}}}, "files is", id="absolute path"),
        pytest.param({"files": {"a": {"bytes": 1, "sha256": "zz"}}}, "files is", id="hash"),
        pytest.param({"kind": []}, "kind is", id="kind no text"),
        pytest.param({"columns": {"x": []}}, "columns is", id="column kind no text"),
        pytest.param(
            {"statistics": {"class_counts": [1]}}, "statistics count 1 classes, there are 2", id="classes counted"
        ),
        pytest.param({"statistics": {"image": {"mean": ["x"], "std": []}}}, "statistics is", id="mean no number"),
        pytest.param({"fields": [FIELD | {"kind": []}]}, r"fields\[0\] kind", id="field kind no text"),
        pytest.param({"fields": [FIELD | {"codec": []}]}, r"fields\[0\] codec", id="codec no text"),
        pytest.param({"fields": [FIELD]}, "without height, width and channels", id="image without shape"),
        pytest.param({"columns": []}, "columns is", id="columns no map"),
        pytest.param({"files": []}, "files is", id="files no map"),
        pytest.param({"statistics": []}, "statistics is", id="statistics no map"),
        pytest.param({"fields": [FIELD | {"dtype": 3}]}, r"fields\[0\] dtype", id="dtype no text"),
        pytest.param({"fields": [FIELD | {"name": "x" * 99 + " "}]}, r"xxx\.\.\.", id="long values are cut"),
        pytest.param({"fields": []}, "fields is \\[\\]", id="no fields"),
        pytest.param({"fields": [FIELD | {"suffix": "../x"}]}, r"fields\[0\] suffix", id="suffix"),
        pytest.param({"fields": [FIELD | {"codec": "pkl", "suffix": "pkl"}]}, r"fields\[0\] codec", id="pickle"),
        pytest.param({"fields": [FIELD | {"kind": "what"}]}, r"fields\[0\] kind", id="field kind"),
        pytest.param({"fields": [FIELD | {"shape": [-3]}]}, r"fields\[0\] shape", id="shape"),
        pytest.param({"fields": [FIELD | {"name": "a b"}]}, r"fields\[0\] name", id="name"),
        pytest.param({"fields": [{"name": "x"}]}, r"fields\[0\] is", id="incomplete field"),
        pytest.param({"fields": [SIZED, SIZED]}, "a name occurs twice", id="twice"),
    ],
)
def test_each_fault_is_refused(entries: dict[str, Any], problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        parse_manifest(changed(**entries))


TOKENS = (
    FieldSpec("tokens", "tokens", "tokens.npy", "rows", "uint16", (8,), (8,)),
    FieldSpec("cu_seqlens", "bounds", "cu_seqlens.npy", "rows", "int32", (None,), (9,)),
)


def test_stores_of_blocks_count_samples_apart_from_what_was_written() -> None:
    whole = replace(MANIFEST, fields=TOKENS, classes=None, counts={"found": 90, "written": 80, "skipped": 10})
    assert parse_manifest(manifest_bytes(whole)).stacked
    assert not MANIFEST.stacked
    mixed = replace(whole, fields=(*TOKENS, FieldSpec("text", "text", "txt", "txt", "")))
    with pytest.raises(FormatError, match="some are rows of blocks and others are not"):
        parse_manifest(manifest_bytes(mixed))


def test_every_problem_is_reported() -> None:
    found = problems(json.loads(changed(kind="zip", samples=-1, classes=...)))
    assert [text.split()[0] for text in found] == ["classes", "kind", "samples"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'"text"', b'{"samples": NaN}'])
def test_no_manifest_at_all(data: bytes) -> None:
    with pytest.raises(FormatError, match="manifest.json: is not"):
        parse_manifest(data)


def test_an_edit_is_noticed() -> None:
    edited = manifest_bytes(MANIFEST).replace(b'"empty": 1', b'"empty": 2')
    with pytest.raises(FormatError, match="edited or damaged"):
        parse_manifest(edited)


def test_a_later_version_says_what_to_do() -> None:
    with pytest.raises(VersionError, match="format version 2, this package reads 1: update"):
        parse_manifest(changed(version=2))


def test_size_is_checked_before_parsing() -> None:
    with pytest.raises(FormatError, match="the limit is"):
        parse_manifest(b"[" * (MAX_MANIFEST + 1))


def test_sequences_have_the_fields_that_the_specification_names() -> None:
    fields = sequence_fields("uint16", 64, 7)
    assert [(f.suffix, f.codec, f.dtype, f.shape, f.maximum) for f in fields] == [
        ("tokens.npy", "rows", "uint16", (64,), (64,)),
        ("cu_seqlens.npy", "rows", "int32", (None,), (7,)),
        ("n_valid.npy", "rows", "int64", (), ()),
    ]
