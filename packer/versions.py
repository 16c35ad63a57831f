"""Versions of everything that shapes a store's bytes: a build goes on, and copies, only with the same ones."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packer.recipe import Recipe

__all__ = ["versions_of"]


def versions_of(recipe: Recipe) -> dict[str, str]:
    """Of everything that shapes bytes; `conversion` rises when this package makes other pixels of the same file."""
    packages = ["numpy", "opencv-python", "opencv-python-headless", "packer-data", "pillow", "simplejpeg", "torch"]
    if recipe.text is not None:
        packages = ["numpy", "packer-data", *([] if recipe.text.tokenizer == "bytes" else [recipe.text.tokenizer])]
    found = {name: _version(name) for name in packages + (["lmdb"] if recipe.container == "lmdb" else [])}
    return {name: text for name, text in found.items() if text} | {"machine": platform.machine(), "conversion": "1"}


def _version(package: str) -> str:
    try:
        return version(package)
    except ModuleNotFoundError:
        return ""
