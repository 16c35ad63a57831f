"""Everything that can be wrong with a manifest, all of it at once (specification, section 8)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from packer_reader.format.columns import canonical_json
from packer_reader.format.fields import CODECS, KINDS, ROWS, FieldSpec
from packer_reader.format.names import MAX_KEY, is_file_name, is_prefix, is_suffix
from packer_reader.format.record import MAX_FIELDS

__all__ = ["FORMAT", "own_hash", "problems"]

FORMAT = "packer-store"


def own_hash(document: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a manifest without its own hash."""
    rest = {name: value for name, value in document.items() if name != "manifest_sha256"}
    return hashlib.sha256(canonical_json(rest)).hexdigest()


Check = Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_KEY


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _is_map(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(check(v) for v in value.values())


def _is_strings(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(v, str) for v in value))


def _is_files(value: Any) -> bool:
    if not isinstance(value, dict) or not all(is_file_name(name) for name in value):
        return False
    return all(isinstance(v, dict) and _is_count(v.get("bytes")) and _is_hash(v.get("sha256")) for v in value.values())


def _is_columns(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return all(
        is_file_name(name) and "/" not in name and kind in ("number", "bytes", "string") for name, kind in value.items()
    )


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(n, int | float) and not isinstance(n, bool) for n in value)


def _is_statistics(value: Any) -> bool:
    if not isinstance(value, dict) or not _is_numbers(value.get("class_counts", [])):
        return False
    image = value.get("image", {"mean": [], "std": []})
    return isinstance(image, dict) and _is_numbers(image.get("mean")) and _is_numbers(image.get("std"))


_CHECKS: Mapping[str, tuple[Check, str]] = {
    "format": (lambda v: v == FORMAT, f"should be {FORMAT!r}"),
    "kind": (lambda v: v in ("tar", "lmdb"), "should be 'tar' or 'lmdb'"),
    "prefix": (is_prefix, "should be letters, digits and _"),
    "split": (lambda v: v is None or is_prefix(v), "should be null, or letters, digits and _"),
    "samples": (_is_count, "should be a count"),
    "records": (_is_count, "should be a count"),
    "shards": (_is_count, "should be a count"),
    "bytes": (lambda v: type(v) is int and v >= 0, "should be a number of bytes"),
    "fields": (lambda v: isinstance(v, list) and 1 <= len(v) <= MAX_FIELDS, f"should list 1 to {MAX_FIELDS} fields"),
    "classes": (_is_strings, "should be null or a list of names"),
    "columns": (_is_columns, "should map column names to number, bytes or string"),
    "shuffled": (lambda v: isinstance(v, bool), "should be true or false"),
    "content_digest": (_is_hash, "should be a SHA-256"),
    "recipe": (lambda v: isinstance(v, dict), "should be an object"),
    "recipe_digest": (_is_hash, "should be a SHA-256"),
    "versions": (_is_map(lambda v: isinstance(v, str)), "should map packages to versions"),
    "source": (lambda v: isinstance(v, dict), "should be an object"),
    "counts": (_is_map(_is_count), "should map to counts"),
    "errors": (_is_map(_is_count), "should map failure classes to counts"),
    "reencoded": (_is_map(_is_count), "should map codecs to counts"),
    "statistics": (_is_statistics, "should hold channel sums and as many class counts as there are"),
    "files": (_is_files, "should map relative names to bytes and sha256, with no way out of the folder"),
}


def problems(document: Any) -> list[str]:
    """Everything wrong with a decoded manifest, in words; empty when it is sound."""
    if not isinstance(document, dict):
        return ["is not a JSON object"]
    found = [f"{name} is missing" for name in _CHECKS if name not in document]
    found += [
        f"{name} is {_short(document[name])}, {wanted}"
        for name, (check, wanted) in _CHECKS.items()
        if name in document and not check(document[name])
    ]
    if found:
        return found
    for place, field in enumerate(document["fields"]):
        found += [f"fields[{place}] {text}" for text in _field_problems(field)]
    found = found or _relations(document)
    if not found and document.get("manifest_sha256") != own_hash(document):
        found.append("manifest_sha256 does not fit the rest: the manifest was edited or damaged")
    return found


def _relations(document: Mapping[str, Any]) -> list[str]:
    found = []
    for part in ("name", "suffix"):
        values = [field[part] for field in document["fields"]]
        if len(set(values)) != len(values):
            found.append(f"fields: a {part} occurs twice")
    counts = document["counts"]
    classes, class_counts = document["classes"], document["statistics"].get("class_counts")
    labelled = any(field["kind"] == "label" for field in document["fields"])
    named = len(classes) if classes is not None else None if labelled else 0
    if class_counts is not None and named is not None and len(class_counts) != named:
        found.append(f"statistics count {len(class_counts)} classes, there are {named}")
    stacked = {field["codec"] == ROWS for field in document["fields"]}
    if len(stacked) > 1:
        found.append("fields: some are rows of blocks and others are not")
    if counts.get("written") != document["samples"] and stacked == {False}:
        found.append(f"counts.written is {counts.get('written')!r}, samples is {document['samples']}")
    if counts.get("found") != counts.get("written", 0) + counts.get("skipped", 0):
        found.append("counts: found is not written + skipped")
    return found


def _field_problems(field: Any) -> list[str]:
    if not isinstance(field, dict) or set(field) != {f.name for f in fields(FieldSpec)}:
        return [f"is {_short(field)}, should have {', '.join(f.name for f in fields(FieldSpec))}"]
    found = []
    if not is_suffix(field["suffix"]):
        found.append(f"suffix is {_short(field['suffix'])}")
    if not (isinstance(field["name"], str) and field["name"].isidentifier()):
        found.append(f"name is {_short(field['name'])}")
    if not isinstance(field["kind"], str) or field["kind"] not in KINDS:
        found.append(f"kind is {_short(field['kind'])}")
    if (
        not isinstance(field["codec"], str)
        or field["codec"] not in CODECS
        or str(field["suffix"]).split(".")[-1] != {ROWS: "npy"}.get(field["codec"], field["codec"])
    ):
        found.append(f"codec is {_short(field['codec'])}, suffix {_short(field['suffix'])}")
    if not isinstance(field["dtype"], str):
        found.append(f"dtype is {_short(field['dtype'])}")
    for part in ("shape", "maximum"):
        sides = field[part]
        if not isinstance(sides, list) or len(sides) > 8 or not all(_is_side(s, part) for s in sides):
            found.append(f"{part} is {_short(sides)}")
    return found or (_image_problems(field) if field["kind"] == "image" else [])


def _image_problems(field: Any) -> list[str]:
    found = []
    if not len(field["shape"]) == len(field["maximum"]) == 3:
        found.append("is an image without height, width and channels in shape and maximum")
    if field["dtype"] not in {"uint8", "uint16"}:
        found.append(f"is an image of dtype {_short(field['dtype'])}, images are uint8 or uint16")
    return found


def _is_side(value: Any, part: str) -> bool:
    return (value is None and part == "shape") or (type(value) is int and 0 <= value < 1 << 40)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
