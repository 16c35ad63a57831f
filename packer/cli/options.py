"""Options that several commands share, each under a heading of the help."""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from packer.cli.headings import HeadedOption
from packer.recipe import Container, Recipe
from packer_reader.errors import UsageError
from packer_reader.sizes import parse_bytes

if TYPE_CHECKING:
    from packer.text import Text

__all__ = ["job_options", "make_recipes", "output_options", "parse_max_errors", "recipe_options"]

Command = TypeVar("Command", bound=Callable[..., Any])

_source = partial(click.option, cls=HeadedOption, heading="Source")
_images = partial(click.option, cls=HeadedOption, heading="Images")
_masks = partial(click.option, cls=HeadedOption, heading="Masks")
_boxes = partial(click.option, cls=HeadedOption, heading="Boxes")
_text = partial(click.option, cls=HeadedOption, heading="Text")
_store = partial(click.option, cls=HeadedOption, heading="Store")
_run = partial(click.option, cls=HeadedOption, heading="Running")
_output = partial(click.option, cls=HeadedOption, heading="Output")
_SOURCE = (
    _source(
        "--from",
        "source_type",
        metavar="TYPE",
        help="Source type: imagefolder, coco, metadata, pairs, sidecars, store, text, voc, webdataset, yolo, or "
        "python:MODULE:ATTRIBUTE in place of SOURCE; detected when left out.",
    ),
    _source(
        "--field",
        "fields",
        multiple=True,
        metavar="NAME=KIND:COLUMN",
        help="Of a list: store this column as image, label, mask, depth, text, json or number.",
    ),
    _source("--classes", metavar="STORE|FILE", help="Keep these class indices; new classes come behind them."),
    _source("--max-pixels", type=int, default=1 << 27, show_default=True, help="Skip larger images, by their header."),
)
_IMAGES = (
    _images(
        "--resize",
        multiple=True,
        metavar="N|HxW",
        help="Size in pixels: one side, or height x width. Several make a store of each, decoding once.",
    ),
    _images(
        "--fit",
        default="shorter",
        show_default=True,
        metavar="shorter|longer|stretch|crop|pad",
        help="How an image meets --resize.",
    ),
    _images("--no-upscale", is_flag=True, help="Keep images that are smaller."),
    _images("--gray", is_flag=True, help="One channel instead of RGB."),
    _images("--bits", type=int, default=8, show_default=True, metavar="8|16", help="Per channel."),
    _images("--exact", is_flag=True, help="Decode large JPEGs in full before they are resized."),
    _images(
        "--encode",
        default="keep",
        show_default=True,
        metavar="keep|jpg|png|webp|raw",
        help="Codec of the images; keep takes that of most source files.",
    ),
    _images("--quality", type=int, default=90, show_default=True, help="Of JPEG and WebP, 1 to 100."),
    _images("--roi", is_flag=True, help="JPEGs (--encode jpg) of which random crops are decoded alone."),
)
_MASKS = (
    _masks("--ignore-label", type=int, default=255, show_default=True, help="What masks have where there is no image."),
    _masks("--label-map", metavar="FILE", help="JSON or CSV of labels and what they become."),
    _masks("--check-labels", metavar="0-18,255", help="Skip a sample whose mask has other labels, and say so."),
    _masks("--reduce-zero-label", is_flag=True, help="0 becomes the ignore label, the others one less."),
)
_BOXES = (
    _boxes(
        "--min-box-size", type=float, default=1.0, show_default=True, help="Drop boxes with smaller sides, in pixels."
    ),
    _boxes("--min-visibility", type=float, default=0.0, show_default=True, help="Drop boxes of which less is left."),
)
_TEXT = (
    _text("--tokenizer", metavar="FILE", help="A tokenizer.json, a sentencepiece .model, or bytes.  [default: bytes]"),
    _text(
        "--pack",
        metavar="none|concat|bestfit",
        help="A sample is a document, a piece of all end to end, or documents as whole as they fit.  [default: none]",
    ),
    _text("--seq-len", type=int, metavar="L", help="Tokens of a packed sequence: with shifted labels, context + 1."),
    _text("--bos", metavar="ID|TOKEN", help="Before each document.  [default: nothing]"),
    _text("--eos", metavar="ID|TOKEN|none", help="Behind each document.  [default: the tokenizer's end of text]"),
    _text("--pad", type=int, metavar="ID", help="Behind the valid tokens of a sequence.  [default: that of --eos]"),
    _text("--allow-special", is_flag=True, help="Names of special tokens in documents mean those tokens."),
    _text("--keep-text", is_flag=True, help="Store the text beside its tokens."),
    _text("--text-field", metavar="NAME", help="Key or column of the text.  [default: text]"),
    _text("--doc-sep", metavar="file|line|blank", help="What ends a document of a .txt file.  [default: file]"),
    _text(
        "--encoding-errors",
        metavar="strict|replace",
        help="Skip a document that is no valid Unicode, or put U+FFFD in it.  [default: strict]",
    ),
    _text("--max-document", metavar="SIZE", help="Skip longer documents.  [default: 16MiB]"),
)
_STORE = (
    _store("--seed", type=int, default=0, show_default=True, help="Of the stored order and the split."),
    _store("--no-shuffle", is_flag=True, help="Keep the source's sorted order."),
    _store("--val", type=float, metavar="SHARE", help="Make splits train and val; val gets this share."),
    _store("--group-by", metavar="REGEX", help="Keep samples whose names match alike in one split."),
    _store("--stratify", is_flag=True, help="Give each class the same share of val."),
    _store("--meta", is_flag=True, help="Add a json field with source name, class and sizes."),
    _store(
        "--source-names",
        type=click.Choice(["keep", "hash", "none"]),
        default="keep",
        show_default=True,
        help="What the store says of source names.",
    ),
)
_RUN = (
    _run(
        "--workers",
        type=int,
        metavar="N",
        help="Processes; as many as this job may use when left out, none for under 500 samples.",
    ),
    _run("--runner", default="processes", show_default=True, metavar="processes|serial", help="Who converts."),
    _run("--reuse", metavar="STORE", help="Copy what has not changed from an earlier store."),
    _run("--tmp", metavar="DIR", help="Where unfinished parts lie; beside OUT when left out."),
    _run(
        "--gather/--no-gather",
        default=None,
        help="Read text once from end to end and sort it beside OUT.  [default: on slow disks, where memory is less]",
    ),
    _run("--no-resume", is_flag=True, help="Start over instead of going on with an interrupted build."),
    _run("--overwrite", is_flag=True, help="Replace a store that packer wrote."),
    _run(
        "--on-error",
        type=click.Choice(["skip", "stop"]),
        default="skip",
        show_default=True,
        help="What a sample does that cannot be converted.",
    ),
    _run(
        "--max-errors",
        default="0",
        show_default=True,
        metavar="N|P%",
        help="More skipped samples than this give exit code 3; the store is complete either way.",
    ),
)
_OUTPUT = (
    _output("--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else."),
    _output("--quiet", is_flag=True, help="No progress."),
)
_SAME = (
    "fit", "gray", "bits", "exact", "encode", "quality", "roi", "seed", "val", "group_by", "stratify", "meta",
    "max_pixels", "source_names", "ignore_label", "reduce_zero_label", "min_box_size", "min_visibility",
)  # fmt: skip
"""Options that a recipe takes as they are."""


def _add(options: tuple[Callable[[Any], Any], ...], command: Command) -> Command:
    return functools.reduce(lambda inner, option: option(inner), reversed(options), command)


def recipe_options(command: Command) -> Command:
    """Add what decides the bytes: the recipe, and how the source is read."""
    return _add((*_SOURCE, *_IMAGES, *_MASKS, *_BOXES, *_TEXT, *_STORE), command)


def job_options(command: Command) -> Command:
    """Add how a build is run."""
    return _add(_RUN, command)


def output_options(command: Command) -> Command:
    """Add how a command speaks."""
    return _add(_OUTPUT, command)


def make_recipes(container: Container, size: str, options: dict[str, Any]) -> list[Recipe]:
    """Recipes from option values, one per size; an LMDB store has no shards, so their size is no part of its recipe.

    Raises:
        UsageError: naming the option that cannot be used.
    """
    shard_bytes = parse_bytes(size, "--size")
    same: dict[str, Any] = {name: options[name] for name in _SAME}
    label_map = _read_label_map(options["label_map"]) if options["label_map"] else ()
    words = _make_text(options)
    if container == "tar":
        same["shard_bytes"] = shard_bytes
    return [
        Recipe(
            container=container,
            resize=_parse_resize(size_text),
            upscale=not options["no_upscale"],
            shuffle=not options["no_shuffle"],
            label_map=label_map,
            check_labels=_parse_labels(options["check_labels"]),
            text=words,
            **same,
        )
        for size_text in options["resize"] or [None]
    ]


_TEXT_NAMES = {
    "pack": "pack", "seq_len": "seq_len", "bos": "bos", "eos": "eos", "pad": "pad", "text_field": "field",
    "doc_sep": "separator", "encoding_errors": "errors", "max_document": "max_document",
}  # fmt: skip
"""Options about text to what `tokenized` calls them."""


def _make_text(options: dict[str, Any]) -> Text | None:
    """What documents become; None where nothing was said about text."""
    given = {name: options[option] for option, name in _TEXT_NAMES.items() if options[option] is not None}
    given |= {name: True for name in ("allow_special", "keep_text") if options[name]}
    if not given and options["tokenizer"] is None:
        return None
    for name in ("bos", "eos"):
        if given.get(name) == "none":
            given[name] = None
    if "max_document" in given:
        given["max_document"] = parse_bytes(given["max_document"], "--max-document")
    from packer.tokens.tokenizer import BYTES, tokenized

    return tokenized(options["tokenizer"] or BYTES, **given)


def _read_label_map(path: str) -> tuple[tuple[int, int], ...]:
    """Pairs of labels from a JSON object, or from lines `old,new`."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("{"):
            pairs = [(int(old), operator.index(new)) for old, new in json.loads(text).items()]
        else:
            lines = [line.split(",") for line in text.splitlines() if line.strip()]
            pairs = [(int(old), int(new)) for old, new in lines]
    except OSError as error:
        raise UsageError(f"--label-map {path!r} cannot be read ({error.strerror}): check the path") from None
    except (ValueError, TypeError):
        pairs = []
    if not pairs:
        raise UsageError(f'--label-map {path!r} must be a JSON object such as {{"7": 0, "8": 1}}, or lines such as 7,0')
    return tuple(sorted(pairs))


def _parse_labels(text: str | None) -> tuple[tuple[int, int], ...]:
    """Ranges of labels: `0-18,255`."""
    if text is None:
        return ()
    ranges = [re.fullmatch(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?\s*", part) for part in text.split(",")]
    if not all(ranges):
        raise UsageError(f"--check-labels is {text!r}, it must be labels and ranges of them, such as 0-18,255")
    return tuple((int(found[1]), int(found[2] or found[1])) for found in ranges if found is not None)


def _parse_resize(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(re.fullmatch("[0-9]{1,9}", side) for side in sides):
        raise UsageError(f"--resize is {text!r}, it must be N or HxW in pixels, such as 256 or 224x320")
    return tuple(int(side) for side in sides)


def parse_max_errors(text: str, found: int) -> int:
    """The number of skipped samples that is still fine, from `N` or `P%` of those found.

    Raises:
        UsageError: it cannot be read.
    """
    share = text.endswith("%")
    try:
        value = float(text.rstrip("%"))
    except ValueError:
        value = -1
    if not 0 <= value <= 1e15 or (share and value > 100) or (not share and value != int(value)):
        raise UsageError(f"--max-errors is {text!r}, it must be a count, or a share such as 1%")
    return int(found * value / 100) if share else int(value)
