"""How many documents a unit has: enough tokens to pack well, few enough to be held and to be done again. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from packer.recipe import Recipe
from packer_reader.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer.text import Text

__all__ = ["PICTURES", "of_text", "with_unit"]

_LEAST, _MOST = 1 << 20, 16 << 20
"""Bytes of a unit's documents."""
_SEQUENCES = 512
"""That a unit should make: best-fit leaves about one of them half empty."""
_PER_TOKEN = 4
"""Bytes of text."""
_MOST_WINDOW = 128 << 20
_PARTS = 64
"""Units that a set should have, so that workers end together."""
_DOCUMENTS = 1 << 15
"""Of a unit at most."""
PICTURES = {
    "resize": "--resize", "fit": "--fit", "upscale": "--no-upscale", "gray": "--gray", "bits": "--bits",
    "exact": "--exact", "encode": "--encode", "quality": "--quality", "roi": "--roi", "max_pixels": "--max-pixels",
    "meta": "--meta", "stratify": "--stratify", "ignore_label": "--ignore-label", "label_map": "--label-map",
    "reduce_zero_label": "--reduce-zero-label", "check_labels": "--check-labels", "min_box_size": "--min-box-size",
    "min_visibility": "--min-visibility",
}  # fmt: skip
"""Fields of a recipe that one of text cannot have, with their options."""


def of_text(recipes: Sequence[Recipe], text: Text) -> Recipe:
    """The one recipe of a source of text.

    Raises:
        UsageError: an option is about pictures.
    """
    plain = Recipe()
    for name, option in PICTURES.items():
        if any(getattr(recipe, name) != getattr(plain, name) for recipe in recipes):
            raise UsageError(f"{option} is about pictures, and the source is text: leave it out")
    return replace(recipes[0], text=text)


def with_unit(recipe: Recipe, source_bytes: int, documents: int) -> Recipe:
    """The recipe with as many documents in a unit as make a window; it depends on the source alone.

    Args:
        recipe: of text; any other stays what it is.
        source_bytes: of all documents.
        documents: their number.
    """
    if recipe.text is None or not documents:
        return recipe
    window = min(_MOST, max(_LEAST, source_bytes // _PARTS))
    if recipe.text.seq_len is not None:
        window = min(_MOST_WINDOW, max(window, _SEQUENCES * recipe.text.seq_len * _PER_TOKEN))
    mean = max(1, source_bytes // documents)
    return replace(recipe, unit=max(1, min(_DOCUMENTS, window // mean)))
