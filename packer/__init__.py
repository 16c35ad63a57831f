"""Convert raw data sets, once and offline, into stores that `packer_reader` streams into training.

    packer.build("imagefolder/", "out.lmdb", Recipe(container="lmdb", resize=(256, 256), fit="crop"))

The command `packer` is the same with options. Importing this package loads neither numpy nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from packer_reader._version import __version__

if TYPE_CHECKING:
    from packer.convert import build, write
    from packer.job import Job
    from packer.recipe import Recipe
    from packer.report import Report
    from packer.tokens.tokenizer import tokenized

__all__ = ["Job", "Recipe", "Report", "__version__", "build", "tokenized", "write"]

_HOMES = {
    "Job": "packer.job",
    "Recipe": "packer.recipe",
    "Report": "packer.report",
    "build": "packer.convert",
    "tokenized": "packer.tokens.tokenizer",
    "write": "packer.convert",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'packer' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
