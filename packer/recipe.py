"""The whole job as frozen data.

Refused on construction if it is wrong, kept in the manifest; its digest guards resume.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from packer.text import Text
from packer_reader.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["UNIT", "Container", "Encode", "Fit", "Recipe", "SourceNames", "choose_codec", "several_sizes", "size_name"]

Container = Literal["tar", "lmdb"]
Fit = Literal["shorter", "longer", "stretch", "crop", "pad"]
Encode = Literal["keep", "jpg", "png", "webp", "raw"]
SourceNames = Literal["keep", "hash", "none"]

UNIT = 128
"""Samples that a worker converts at a time. Part of every recipe, never of the number of workers."""
MAX_SIDE = 65_500
"""libjpeg's limit."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is made of a source. Equal recipes on equal sources give equal bytes.

    Raises:
        UsageError: naming the option, its value and what it takes.
    """

    container: Container = "tar"
    """`tar` shards, or one `lmdb` file."""
    shard_bytes: int = 256_000_000
    """No shard is larger, unless a single sample is; at least 10 kB. Ignored for LMDB."""
    resize: tuple[int, ...] | None = None
    """(N,) or (height, width) in pixels; None keeps every size."""
    sizes: tuple[tuple[int, ...], ...] = ()
    """All sizes of a build that makes several; a JPEG is decoded once, with all of them in mind."""
    fit: Fit = "shorter"
    """How an image meets `resize`: its shorter or longer side becomes N, both sides stretch, or the ratio is kept and
    the rest cropped or padded."""
    upscale: bool = True
    """False: images smaller than asked for keep their size."""
    gray: bool = False
    """One channel (ITU-R 601 luma) instead of three."""
    bits: int = 8
    """Per channel, 8 or 16. With 16, pictures of 8 bits are scaled by 257; png and raw can hold it."""
    exact: bool = False
    """Decode large JPEGs in full before they are resized, instead of at 1/2, 1/4 or 1/8."""
    encode: Encode = "keep"
    """`keep`: the codec of most source files, and the very bytes where nothing changes."""
    quality: int = 90
    """Of JPEG and WebP, 1 to 100."""
    roi: bool = False
    """JPEGs with restart markers, of 1 % more bytes: any decoder reads them, and the reader only what a crop needs."""
    seed: int = 0
    """Of the stored order and of the split, 0 to 2^64-1."""
    shuffle: bool = True
    """False stores the source's sorted order."""
    val: float | None = None
    """Share of the samples that becomes the split `val`, over 0 and under 1; the rest is `train`."""
    group_by: str | None = None
    """A regular expression over source names: samples with the same first group (or match) stay in one split."""
    stratify: bool = False
    """Give each class the same share of `val`. Then a growing set may move samples between splits."""
    ignore_label: int = 255
    """What a mask has where there is no image, and where nothing is to be learned."""
    label_map: tuple[tuple[int, int], ...] = ()
    """Masks: what each label becomes, as (from, to); labels that it does not name become the ignore label. Empty keeps
    all."""
    reduce_zero_label: bool = False
    """Masks: 0 means nothing, so it becomes the ignore label and all others one less, as in ADE20K."""
    check_labels: tuple[tuple[int, int], ...] = ()
    """Masks: the labels that there may be, as (first, last), beside the ignore label; a sample with others is skipped.
    Checked after `label_map`, before resizing. Empty checks nothing."""
    min_box_size: float = 1.0
    """Boxes with a side under so many stored pixels are dropped."""
    min_visibility: float = 0.0
    """Boxes of which a crop leaves less than this share of their area are dropped."""
    meta: bool = False
    """Add a `json` field with source name, class name and sizes."""
    source_names: SourceNames = "keep"
    """What the store says of source names: `keep`, `hash` (32 hex digits of their SHA-256) or `none`."""
    max_pixels: int = 1 << 27
    """Larger images are skipped, by their header, before anything is allocated."""
    unit: int = UNIT
    """Samples that are converted, and resumed, together; of documents as many as make a window."""
    text: Text | None = None
    """How text becomes tokens; with a source of text."""

    def __post_init__(self) -> None:
        choosable = {"container": Container, "fit": Fit, "encode": Encode, "source_names": SourceNames}
        for name, choices in choosable.items():
            if getattr(self, name) not in get_args(choices):
                _refuse(name, getattr(self, name), f"one of {', '.join(get_args(choices))}")
        if type(self.shard_bytes) is not int or not 10_000 <= self.shard_bytes <= 1 << 50:
            _refuse("shard_bytes", self.shard_bytes, "at least 10KB and at most 1 PiB, in bytes")
        _check_range("quality", self.quality, 1, 100)
        _check_range("seed", self.seed, 0, 2**64 - 1)
        _check_range("max_pixels", self.max_pixels, 1, 1 << 36)
        _check_range("unit", self.unit, 1, 1 << 20)
        _check_range("ignore_label", self.ignore_label, 0, 255)
        self._check_label_map()
        if not 0 <= self.min_box_size < MAX_SIDE:
            _refuse("min_box_size", self.min_box_size, "a number of pixels from 0 on")
        if not 0 <= self.min_visibility <= 1:
            _refuse("min_visibility", self.min_visibility, "a share from 0 to 1")
        if self.bits not in {8, 16}:
            _refuse("bits", self.bits, "8 or 16")
        if self.bits == 16 and self.encode in {"jpg", "webp"}:
            _refuse("bits", 16, f"8 with --encode {self.encode}: png and raw hold 16 bits")
        if self.roi and self.encode != "jpg":
            raise UsageError(f"--roi is about JPEGs, but --encode is {self.encode!r}: give --encode jpg")
        self._check_resize()
        self._check_split()

    def _check_label_map(self) -> None:
        if self.label_map and self.reduce_zero_label:
            raise UsageError("--label-map and --reduce-zero-label are both given: the map can say all of it")
        named = [old for old, _ in self.label_map]
        if len(set(named)) < len(named) or not all(0 <= n < 1 << 16 for pair in self.label_map for n in pair):
            _refuse("label_map", self.label_map, "labels from 0 to 65535, each named once")
        if not all(0 <= first <= last < 1 << 16 for first, last in self.check_labels):
            _refuse("check_labels", self.check_labels, "ranges of labels from 0 to 65535")

    def _check_resize(self) -> None:
        if self.resize is None:
            if self.fit != "shorter":
                raise UsageError(f"--fit {self.fit} says how an image meets --resize: give --resize as well")
            return
        if len(self.resize) not in {1, 2}:
            _refuse("resize", self.resize, "N or HxW")
        for side in self.resize:
            _check_range("resize", side, 1, MAX_SIDE)
        if len(self.resize) == 2 and self.fit in {"shorter", "longer"}:
            sides = "x".join(map(str, self.resize))
            _refuse("resize", sides, f"one number with --fit {self.fit}; for both sides take stretch, crop or pad")

    def _check_split(self) -> None:
        if self.val is not None and not 0 < self.val < 1:
            _refuse("val", self.val, "a share over 0 and under 1, such as 0.05")
        if self.val is None and (self.group_by is not None or self.stratify):
            option = "--group-by" if self.group_by is not None else "--stratify"
            raise UsageError(f"{option} is about the split that --val makes: give --val as well, such as --val 0.05")
        if self.group_by is not None and self.stratify:
            _refuse("stratify", True, "used without --group-by: a group may hold several classes")
        if self.group_by is not None:
            try:
                re.compile(self.group_by)
            except (re.error, OverflowError, RecursionError) as error:
                _refuse("group_by", self.group_by, f"a regular expression ({error})")

    @property
    def target(self) -> tuple[int, int] | None:
        """(height, width) that crop, pad and stretch aim at; None without `resize`."""
        return None if self.resize is None else (self.resize[0], self.resize[-1])

    @property
    def dtype(self) -> str:
        """Numpy name of the stored pixels' type."""
        return f"uint{self.bits}"

    def to_json(self) -> dict[str, Any]:
        """The recipe as JSON keeps it; two equal recipes give equal documents."""
        document: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        document["text"] = self.text.to_json() if self.text is not None else None
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The recipe of a document that `to_json` made."""
        lists = {
            "resize": tuple(document["resize"]) if document["resize"] else None,
            "sizes": tuple(tuple(size) for size in document["sizes"]),
            "text": Text.from_json(document["text"]) if document.get("text") else None,
            **{name: tuple(map(tuple, document.get(name, []))) for name in ("label_map", "check_labels")},
        }
        return cls(**{**document, **lists})


def _check_range(name: str, value: Any, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        _refuse(name, value, f"a whole number from {low} to {high}")


def _refuse(name: str, value: Any, wanted: str) -> None:
    option = {"shard_bytes": "size"}.get(name, name).replace("_", "-")
    raise UsageError(f"--{option} is {value!r}, it must be {wanted}")


def size_name(resize: Sequence[int] | None) -> str:
    """What the folder of one of several sizes is called: `224`, `224x320`, `original`."""
    return "x".join(map(str, resize)) if resize else "original"


def several_sizes(recipes: list[Recipe]) -> list[Recipe]:
    """The recipes of one build, each with the sizes of all.

    Raises:
        UsageError: they are not one job at several sizes.
    """
    if not recipes or any(replace(recipe, resize=recipes[0].resize) != recipes[0] for recipe in recipes):
        raise UsageError("recipes of one build must differ in resize alone")
    names = [size_name(recipe.resize) for recipe in recipes]
    if len(set(names)) < len(names):
        raise UsageError(f"--resize is given twice with the same size: {', '.join(names)}")
    if len(recipes) == 1:
        return recipes
    sizes = tuple(recipe.resize or () for recipe in recipes)
    return [replace(recipe, sizes=sizes) for recipe in recipes]


_LOSSY = {
    ".npy": "npy",
    ".jpg": "jpg",
    ".jpeg": "jpg",
    ".jpe": "jpg",
    ".jfif": "jpg",
    ".avif": "jpg",
    ".jp2": "jpg",
    ".webp": "webp",
}


def choose_codec(recipe: Recipe, suffixes: Counter[str]) -> str:
    """The one codec of a store's images: as asked, or the one of most source files by extension."""
    if recipe.encode != "keep":
        return {"raw": "npy"}.get(recipe.encode, recipe.encode)
    if recipe.bits == 16:
        return "png"
    codecs: Counter[str] = Counter()
    for suffix, count in sorted(suffixes.items()):
        codecs[_LOSSY.get(suffix, "png")] += count
    return max(sorted(codecs), key=lambda codec: codecs[codec], default="jpg")
