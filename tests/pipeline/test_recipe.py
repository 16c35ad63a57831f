"""Recipes: refused on construction, with the option's name, its value and what it takes."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from packer import Recipe
from packer.recipe import choose_codec
from packer_reader.errors import UsageError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"container": "zip"}, "--container is 'zip', it must be one of tar, lmdb"),
        ({"fit": "squash", "resize": (8,)}, "--fit is 'squash'"),
        ({"fit": "crop"}, "--fit crop says how an image meets --resize: give --resize as well"),
        ({"encode": "bmp"}, "--encode is 'bmp'"),
        ({"quality": 0}, "--quality is 0, it must be a whole number from 1 to 100"),
        ({"quality": True}, "--quality is True"),
        ({"seed": -1}, "--seed is -1"),
        ({"shard_bytes": 100}, "--size is 100"),
        ({"resize": (0,)}, "--resize is 0"),
        ({"resize": (1, 2, 3)}, "--resize is"),
        ({"resize": (224, 320)}, "--resize is '224x320', it must be one number with --fit shorter"),
        ({"val": 0.0}, "--val is 0.0"),
        ({"val": 1.0}, "--val is 1.0"),
        ({"group_by": "x"}, "--group-by is about the split that --val makes: give --val as well"),
        ({"val": 0.5, "group_by": "("}, "--group-by is '\\(', it must be a regular expression"),
        ({"val": 0.5, "group_by": "x", "stratify": True}, "--stratify is True"),
        ({"max_pixels": 0}, "--max-pixels is 0"),
        ({"bits": 12}, "--bits is 12, it must be 8 or 16"),
        ({"roi": True}, "--roi is about JPEGs, but --encode is 'keep': give --encode jpg"),
        ({"bits": 16, "encode": "jpg"}, "--bits is 16, it must be 8 with --encode jpg"),
        ({"source_names": "drop"}, "--source-names is 'drop', it must be one of keep, hash, none"),
    ],
)
def test_wrong_values_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recipe(**options)


@pytest.mark.parametrize(
    "recipe",
    [Recipe(), Recipe(resize=(8, 9), fit="crop"), Recipe(resize=(8,), sizes=((8,), (4, 4)), fit="pad", bits=16)],
)
def test_a_recipe_is_json(recipe: Recipe) -> None:
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


@pytest.mark.parametrize(
    ("counts", "codec"),
    [
        ({".jpg": 3, ".png": 2}, "jpg"),
        ({".jpeg": 1, ".jfif": 1, ".png": 1}, "jpg"),
        ({".bmp": 2, ".tif": 2, ".jpg": 3}, "png"),
        ({".webp": 2}, "webp"),
        ({}, "jpg"),
    ],
)
def test_the_codec_is_that_of_most_files(counts: dict[str, int], codec: str) -> None:
    assert choose_codec(Recipe(), Counter(counts)) == codec


def test_a_given_codec_wins() -> None:
    assert choose_codec(Recipe(encode="raw"), Counter({".jpg": 9})) == "npy"
