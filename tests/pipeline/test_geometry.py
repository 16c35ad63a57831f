"""Where pixels go: sizes as torchvision has them, no side of zero, no enlarging when refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer import Recipe
from packer.transforms.geometry import Geometry, fit

sides = st.integers(1, 3000)
recipes = st.builds(
    lambda fit, one, other, upscale: Recipe(
        resize=(one,) if fit in {"shorter", "longer"} else (one, other), fit=fit, upscale=upscale
    ),
    st.sampled_from(["shorter", "longer", "stretch", "crop", "pad"]),
    st.integers(1, 600),
    st.integers(1, 600),
    st.booleans(),
)


@given(sides, sides, recipes)
def test_geometry_is_sound(height: int, width: int, recipe: Recipe) -> None:
    g = fit(height, width, recipe)
    top, left, rows, columns = g.crop
    assert min(*g.scaled, rows, columns, *g.size) >= 1
    assert 0 <= top <= g.scaled[0] - rows
    assert 0 <= left <= g.scaled[1] - columns
    assert 0 <= g.pad[0] <= g.size[0] - rows
    assert 0 <= g.pad[1] <= g.size[1] - columns
    if not recipe.upscale:
        assert g.scaled[0] <= height
        assert g.scaled[1] <= width
    if recipe.upscale and recipe.fit in {"stretch", "crop", "pad"}:
        assert g.size == recipe.target


@pytest.mark.parametrize(
    ("size", "options", "expected"),
    [
        ((375, 500), {"resize": (256,)}, (256, 341)),
        ((500, 375), {"resize": (256,)}, (341, 256)),
        ((375, 500), {"resize": (256,), "fit": "longer"}, (192, 256)),
        ((1, 2000), {"resize": (32,), "fit": "longer"}, (1, 32)),
        ((375, 500), {"resize": (256, 100), "fit": "stretch"}, (256, 100)),
        ((375, 500), {"resize": (256,), "fit": "crop"}, (256, 256)),
        ((375, 500), {"resize": (256,), "fit": "pad"}, (256, 256)),
        ((30, 40), {"resize": (256,), "upscale": False}, (30, 40)),
        ((30, 400), {"resize": (100,), "fit": "crop", "upscale": False}, (30, 100)),
        ((30, 40), {"resize": (100,), "fit": "pad", "upscale": False}, (100, 100)),
        ((375, 500), {}, (375, 500)),
    ],
)
def test_sizes(size: tuple[int, int], options: dict[str, Any], expected: tuple[int, int]) -> None:
    assert fit(*size, Recipe(**options)).size == expected


def test_crop_takes_the_middle_and_pad_centres() -> None:
    assert fit(100, 200, Recipe(resize=(50,), fit="crop")) == Geometry((50, 100), (0, 25, 50, 50), (0, 0), (50, 50))
    assert fit(100, 200, Recipe(resize=(50,), fit="pad")) == Geometry((25, 50), (0, 0, 25, 50), (12, 0), (50, 50))
