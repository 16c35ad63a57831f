"""The manifest: what a store says of itself (specification, section 8).

Three verbs: `problems` lists everything wrong with a document, `parse_manifest` raises one error carrying the list,
`manifest_bytes` writes the one canonical form.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from packer_reader.errors import FormatError, VersionError
from packer_reader.format.columns import canonical_json
from packer_reader.format.names import MANIFEST, MAX_KEY, is_file_name, is_prefix, is_suffix
from packer_reader.format.record import MAX_FIELDS

__all__ = [
    "FORMAT",
    "KINDS",
    "MAX_MANIFEST",
    "VERSION",
    "FieldSpec",
    "Manifest",
    "manifest_bytes",
    "parse_manifest",
    "problems",
]

FORMAT = "packer-store"
VERSION = 1
MAX_MANIFEST = 64 << 20
"""Bytes; checked before the file is read."""
KINDS = frozenset(
    {
        "image",
        "mask",
        "depth",
        "boxes",
        "points",
        "volume",
        "tokens",
        "text",
        "label",
        "number",
        "audio",
        "json",
        "bytes",
    }
)
CODECS = frozenset({"jpg", "png", "webp", "npy", "cls", "txt", "json", "msg"})


@dataclass(frozen=True)
class FieldSpec:
    """One field that every sample of the store has."""

    name: str
    """What batches call it: `image`, `label`."""
    kind: str
    """One of `KINDS`; it alone decides how the field is treated."""
    suffix: str
    """What stands behind the key in a member's name, and the key in an LMDB map."""
    codec: str
    """How the bytes are decoded: the last part of the suffix."""
    dtype: str
    """numpy name of the decoded elements, `uint8`; empty for text and json."""
    shape: tuple[int | None, ...] = ()
    """Decoded shape, height first; None where samples differ."""
    maximum: tuple[int, ...] = ()
    """Largest decoded side per dimension, for slots; equal to the shape where that is fixed."""


@dataclass(frozen=True)
class Manifest:
    """Everything about a store that does not grow with it."""

    kind: str
    """`tar` or `lmdb`."""
    prefix: str
    """What shard names begin with: the split, or `train`."""
    split: str | None
    """The split's name; None when the data has none."""
    samples: int
    records: int
    """LMDB values; equal to samples in a tar store."""
    shards: int
    """Tar files, or index runs of an LMDB store."""
    bytes: int
    """Bytes of all fields, without framing."""
    fields: tuple[FieldSpec, ...]
    classes: tuple[str, ...] | None
    """Class names by index; None without classes."""
    columns: Mapping[str, str]
    """Column name to `number`, `bytes` or `string`."""
    shuffled: bool
    """Whether the stored order is a seeded shuffle of the source."""
    content_digest: str
    """SHA-256 over keys, sizes and CRCs: equal for tar and LMDB stores of one recipe."""
    recipe: Mapping[str, Any]
    recipe_digest: str
    versions: Mapping[str, str]
    """Of what shapes bytes: packages and the CPU architecture."""
    source: Mapping[str, Any]
    """Type, files, bytes and listing digest of what was converted."""
    counts: Mapping[str, int]
    """found, written, skipped."""
    errors: Mapping[str, int]
    """Skipped samples by failure class."""
    reencoded: Mapping[str, int]
    """Samples stored in another codec than they had, by `from>to`."""
    statistics: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]
    """Bytes and SHA-256 of every other file but shards and indexes, which `columns/shards.col` lists."""

    def field(self, name: str) -> FieldSpec | None:
        """The field of this name, or None."""
        return next((f for f in self.fields if f.name == name), None)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The fields' suffixes in stored order."""
        return tuple(f.suffix for f in self.fields)


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest's file: JSON with sorted keys, for people to read, with its own hash."""
    document = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    document["manifest_sha256"] = _own_hash(document)
    return json.dumps(document, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False).encode() + b"\n"


def _own_hash(document: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in document.items() if name != "manifest_sha256"}
    return hashlib.sha256(canonical_json(rest)).hexdigest()


def parse_manifest(data: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        VersionError: of a later format.
        FormatError: with everything wrong with it.
    """
    if len(data) > MAX_MANIFEST:
        raise FormatError(MANIFEST, [f"has {len(data)} bytes, the limit is {MAX_MANIFEST}"])
    try:
        document = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise FormatError(MANIFEST, ["is not JSON, or cut short"]) from None
    if isinstance(document, dict) and document.get("format") == FORMAT and document.get("version") != VERSION:
        version = document.get("version")
        raise VersionError(f"{MANIFEST}: format version {version!r}, this package reads {VERSION}: update packer-data")
    found = problems(document)
    if found:
        raise FormatError(MANIFEST, found)
    names = {f.name for f in fields(Manifest)}
    values = {name: value for name, value in document.items() if name in names}
    values["fields"] = tuple(_field(f) for f in document["fields"])
    values["classes"] = None if document["classes"] is None else tuple(document["classes"])
    return Manifest(**values)


def _no_constant(name: str) -> None:
    """NaN and Infinity are no JSON, whatever Python takes.

    Raises:
        ValueError: always.
    """
    raise ValueError(name)


def _field(document: Mapping[str, Any]) -> FieldSpec:
    return FieldSpec(**{**document, "shape": tuple(document["shape"]), "maximum": tuple(document["maximum"])})


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
    if not found and document.get("manifest_sha256") != _own_hash(document):
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
    if class_counts is not None and len(class_counts) != len(classes or ()):
        found.append(f"statistics count {len(class_counts)} classes, there are {len(classes or ())}")
    if counts.get("written") != document["samples"]:
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
        or str(field["suffix"]).split(".")[-1] != field["codec"]
    ):
        found.append(f"codec is {_short(field['codec'])}, suffix {_short(field['suffix'])}")
    if not isinstance(field["dtype"], str):
        found.append(f"dtype is {_short(field['dtype'])}")
    for part in ("shape", "maximum"):
        sides = field[part]
        if not isinstance(sides, list) or len(sides) > 8 or not all(_is_side(s, part) for s in sides):
            found.append(f"{part} is {_short(sides)}")
    if not found and field["kind"] == "image" and not (len(field["shape"]) == len(field["maximum"]) == 3):
        found.append("is an image without height, width and channels in shape and maximum")
    return found


def _is_side(value: Any, part: str) -> bool:
    return (value is None and part == "shape") or (type(value) is int and 0 <= value < 1 << 40)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
