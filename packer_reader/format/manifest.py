"""The manifest: what a store says of itself (specification, section 8).

Three verbs: `problems` lists everything wrong with a document, `parse_manifest` raises one error carrying the list,
`manifest_bytes` writes the one canonical form.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from packer_reader.errors import FormatError, VersionError
from packer_reader.format.fields import ROWS, FieldSpec
from packer_reader.format.names import MANIFEST
from packer_reader.format.problems import FORMAT, own_hash, problems

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MAX_MANIFEST",
    "VERSION",
    "FieldSpec",
    "Manifest",
    "manifest_bytes",
    "parse_manifest",
]

VERSION = 1
MAX_MANIFEST = 64 << 20
"""Bytes; checked before the file is read."""


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
    """LMDB values, or samples of a tar store; with blocks the blocks."""
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
    """found, written, skipped: samples of the source, which is documents where those were packed to sequences."""
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
    def stacked(self) -> bool:
        """Whether a record holds a block of samples, each of which is a row of its arrays."""
        return self.fields[0].codec == ROWS

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The fields' suffixes in stored order."""
        return tuple(f.suffix for f in self.fields)


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest's file: JSON with sorted keys, for people to read, with its own hash."""
    document = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    document["manifest_sha256"] = own_hash(document)
    return json.dumps(document, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False).encode() + b"\n"


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
