"""From a raw sample to what the store holds of it: encoded fields and column values."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from packer_reader.errors import SampleError
from packer_reader.format.record import MAX_FIELD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer.sample import RawSample, Ready
    from packer.unit import SplitJob

__all__ = ["Facts", "Opened", "StoredSample", "public_name", "stored_sample", "with_label"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the columns say of one sample."""

    size: tuple[int, int]
    """Height and width of the image."""
    moments: tuple[int, ...]
    """Per channel the sum of its values, then per channel the sum of their squares."""
    source_codec: int
    """Place in `SOURCE_CODECS` of what the source was."""
    source_size: int
    """Bytes of the source."""
    source_hash: bytes
    """`content_hash` of the source."""
    label: int
    """-1 without one."""
    extras: tuple[float, ...] = ()
    """Values of the columns that other fields have."""


@dataclass(frozen=True, slots=True)
class StoredSample:
    """One sample at one size."""

    blobs: list[bytes | memoryview]
    """Encoded fields, in the order of `SplitJob.suffixes`."""
    facts: Facts
    copied: bool = False
    """Whether it comes from an earlier store."""
    crc: int | None = None
    """CRC-32 of the first blob, where it is known already."""


@dataclass(slots=True)
class Opened:
    """A sample that was read, for all sizes; its picture is decoded once, when the first one needs it."""

    raw: RawSample
    digest: bytes
    """`content_hash` of it."""
    picture: Any = None


def stored_sample(job: SplitJob, opened: Opened) -> StoredSample:
    """Convert one sample.

    Args:
        job: recipe, codec and classes.
        opened: the sample as the source holds it.

    Raises:
        SampleError: it cannot be converted.
    """
    raw = opened.raw
    if raw.ready is not None and _as_it_is(job, raw.ready):
        return _stored_again(job, raw, raw.ready)
    from packer.transforms.image import open_image, store_image  # noqa: PLC0415 - torch and cv2 load in workers only

    if isinstance(raw.image, memoryview):
        raw = opened.raw = replace(raw, image=bytes(raw.image))
    if opened.picture is None:
        opened.picture = open_image(raw.image, job.recipe)
    image = store_image(raw.image, opened.picture, job.codec, job.recipe)
    size = len(raw.image) if isinstance(raw.image, bytes) else raw.image.nbytes
    blobs = with_label(job, image.data, image.size, raw.ref.name, raw.label)
    columns = []
    if job.extras:
        from packer.transforms.extras import store_extra  # noqa: PLC0415 - the same

        made = [
            store_extra(e, raw.extras[e.name], opened.picture.frame, image.geometry, job.recipe) for e in job.extras
        ]
        place = 1 + job.labelled
        blobs[place:place] = [blob for blob, _ in made]
        _check_sizes(blobs)
        columns = [column for _, values in made for column in values]
    facts = Facts(image.size, image.moments, image.source_codec, size, opened.digest, raw.label, extras=tuple(columns))
    return StoredSample(blobs, facts)


def _as_it_is(job: SplitJob, ready: Ready) -> bool:
    """Whether a recipe leaves the images of a store as they are."""
    recipe = job.recipe
    return (
        recipe.resize is None
        and recipe.encode == "keep"
        and ready.codec == job.codec
        and ready.dtype == recipe.dtype
        and ready.channels == (1 if recipe.gray else 3)
        and not recipe.reduce_zero_label
        and not recipe.label_map
        and not recipe.check_labels
        and (ready.dropped == (recipe.min_box_size, recipe.min_visibility))
        and ready.size[0] * ready.size[1] <= recipe.max_pixels
    )


def _stored_again(job: SplitJob, raw: RawSample, ready: Ready) -> StoredSample:
    """The very bytes of an earlier store."""
    blobs = with_label(job, ready.image, ready.size, raw.ref.name, raw.label)
    place = 1 + job.labelled
    blobs[place:place] = ready.blobs
    facts = Facts(
        ready.size,
        ready.moments,
        ready.source_codec,
        ready.source_size,
        ready.source_hash,
        raw.label,
        extras=ready.columns,
    )
    return StoredSample(blobs, facts, crc=ready.crc)


def with_label(
    job: SplitJob, image: bytes | memoryview, size: tuple[int, int], name: str, label: int
) -> list[bytes | memoryview]:
    """All fields of a sample around its image.

    Raises:
        SampleError: a field is larger than the format allows, or the label has no class.
    """
    blobs: list[bytes | memoryview] = [image]
    if job.classes is not None and label >= len(job.classes):
        raise SampleError("unsupported", f"the label is {label}, there are {len(job.classes)} classes")
    if job.labelled:
        blobs.append(b"%d" % label)
    if job.recipe.meta:
        height, width = size
        document: dict[str, Any] = {
            "name": public_name(name, job.recipe.source_names),
            "height": height,
            "width": width,
        }
        if job.classes is not None:
            document["class"] = job.classes[label]
        blobs.append(json.dumps(document, sort_keys=True).encode())
    _check_sizes(blobs)
    return blobs


def _check_sizes(blobs: Sequence[bytes | memoryview]) -> None:
    if max(map(len, blobs)) > MAX_FIELD:
        raise SampleError("too-large", f"a stored field has at most {MAX_FIELD} bytes (--encode, --resize)")


def public_name(name: str, source_names: str) -> str:
    """What the store says of a source name: itself, the first 32 hex digits of its SHA-256, or nothing."""
    if source_names == "keep":
        return name
    if source_names == "none":
        return ""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]
