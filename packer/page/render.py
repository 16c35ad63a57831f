"""Figures to HTML: the one home of jinja2."""

from __future__ import annotations

import base64
import io
import math
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import jinja2

from packer_reader.format.names import line_text
from packer_reader.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL import Image

__all__ = ["render"]

WIDTH, HEIGHT = 640, 180
"""Of a plot, in units of its own: it is drawn as wide as the screen allows."""


def render(title: str, stores: Sequence[dict[str, Any]], sheets: Sequence[Image.Image | None]) -> str:
    """A page of HTML that asks for nothing else.

    Args:
        title: of the page.
        stores: of `figures`.
        sheets: a picture of each store's samples, where there is one.
    """
    templates = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters |= {"line": line_text, "bytes": lambda size: format_bytes(round(size)), "short": _short}
    templates.globals |= {"W": WIDTH, "H": HEIGHT, "curve": _curve, "log_place": _log_place}
    template = templates.from_string(files("packer.page").joinpath("page.html").read_text(encoding="utf-8"))
    pages = [store | {"sheet": _data_uri(sheet)} for store, sheet in zip(stores, sheets, strict=True)]
    return template.render(title=title, stores=pages)


def _data_uri(sheet: Image.Image | None) -> str | None:
    if sheet is None:
        return None
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _short(number: float) -> str:
    """A number for an axis: `12`, `1.5k`, `3.2M`."""
    for power, unit in ((9, "G"), (6, "M"), (3, "k")):
        if abs(number) >= 10**power:
            return f"{number / 10**power:.3g}{unit}"
    return f"{number:.4g}"


def _curve(values: Sequence[float], most: float) -> str:
    """Values as the points of a line from the left edge of a plot to the right one."""
    step = WIDTH / max(1, len(values) - 1)
    points = [(place * step, HEIGHT * (1 - value / most)) for place, value in enumerate(values)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _log_place(value: float, low: float, high: float) -> float:
    """Where a value stands between others on a scale of powers."""
    if high <= low:
        return WIDTH / 2
    return WIDTH * min(1.0, max(0.0, math.log(max(value, low) / low) / math.log(high / low)))
