"""From a case's neutral words to the options of `packer`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["HINTS", "LATER", "build_command", "shard_size", "verify_command", "why_later"]

LATER = {
    "npy": "packer reads no arrays yet",
    "tabular": "packer reads no tables yet",
}
"""Source types of the corpus that the product does not have yet."""
HINTS = frozenset({"initial_map_bytes", "commit_every", "allow_empty"})
"""Options of a step that other tools may need; packer has none like them."""

TEXT = ("jsonl-text", "text")
MODES = {"rgb": (), "gray": ("--gray",), "keep": ("--gray", "--bits", "16")}
ON_ERROR = {"skip": ("--max-errors", "100%"), "fail": ("--on-error", "stop")}
RESIZE: dict[str, Callable[[Any], tuple[str, ...]]] = {
    "short": lambda n: ("--resize", str(n)),
    "long": lambda n: ("--resize", str(n), "--fit", "longer"),
    "exact": lambda size: ("--resize", f"{size[1]}x{size[0]}", "--fit", "stretch"),
}
_SMALLEST_SHARD = 10_000
_TAR_BLOCK = 512
_TAR_END = 1024
_PICTURES = (".png", ".jpg", ".jpeg")


def why_later(run: Mapping[str, Any]) -> str | None:
    """Why cases of this source cannot run today; None when they can."""
    return None if "image_col" in run else LATER.get(run["source_type"])


def build_command(run: Mapping[str, Any], source: Path, target: Path, options: Mapping[str, Any]) -> list[str]:
    """The command of one build.

    Args:
        run: a case's `run`.
        source: the raw data.
        target: where the store goes; `.lmdb` makes it LMDB.
        options: of the step.
    """
    shards = target.suffix != ".lmdb"
    command = [sys.executable, "-m", "packer", "shard" if shards else "build", str(source), str(target)]
    if run["source_type"] == "tar":
        command += ["--from", "webdataset"]
    for kind in ("image", "label") if "label_col" in run else ():
        column = run.get("path_col", run.get("image_col")) if kind == "image" else run["label_col"]
        command += ["--field", f"{kind}={kind}:{column}"]
    if run["source_type"] in TEXT:
        command += ["--from", "text", "--keep-text", "--text-field", run.get("text_key", "text")]
    else:
        command += MODES[run["mode"]]
    command += ON_ERROR[run["on_error"]]
    for kind, value in (run["resize"] or {}).items():
        command += RESIZE[kind](value)
    command += ["--workers", str(options.get("workers", 1))]
    if "seed" in options:
        command += ["--seed", str(options["seed"])]
    if options.get("overwrite"):
        command.append("--overwrite")
    size = shard_size(source, run, options) if shards else None
    return command + (["--size", f"{size}B"] if size else [])


def verify_command(store: Path) -> list[str]:
    """The command that reads every byte of a store."""
    return [sys.executable, "-m", "packer", "verify", str(store), "--full"]


def shard_size(source: Path, run: Mapping[str, Any], options: Mapping[str, Any]) -> int | None:
    """The shard size that gives the shards or samples per shard asked for; None when nothing is asked.

    Sound for sources of small pictures of about one size, which are stored as they are with a class number.
    """
    sizes = [_stored(path.stat().st_size) for path in source.rglob("*") if path.suffix in _PICTURES]
    if not sizes:
        return None
    if "samples_per_shard" in options:
        samples = int(options["samples_per_shard"])
    elif "want_shards" in run:
        samples = -(-len(sizes) // run["want_shards"])
    else:
        return None
    return max(_SMALLEST_SHARD, samples * max(sizes) + _TAR_END)


def _stored(size: int) -> int:
    """Bytes of a picture and its class in a tar file: a block of header, and whole blocks of content, for each."""
    return sum(_TAR_BLOCK * (1 + -(-part // _TAR_BLOCK)) for part in (size, 1))
