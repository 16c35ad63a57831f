"""Promises of `packer report`: one file, no network, everything in it, readable on a narrow screen."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import packer_reader
from packer import Job, Recipe, build, tokenized
from packer.page.figures import figures, histogram
from packer.page.render import render
from tests.conftest import make_photos, make_serials
from tests.page.browser import Browser, browser
from tests.text.documents import built, words, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NASTY = "<script>document.title='hit'</script>&\"'"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def page_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of several sizes in three classes, some of which cannot be converted, with names that hurt."""
    source, out = tmp_path_factory.mktemp("s"), tmp_path_factory.mktemp("o") / "o"
    make_photos(source, 40)
    (source / "<b>fox").mkdir()
    for path in list((source / "cat").iterdir())[:5]:
        (source / "<b>fox" / path.name).write_bytes(path.read_bytes()[::-1] + b"x")
    for path in list((source / "dog").iterdir())[:9]:
        (source / "<b>fox" / f"x{path.name}").write_bytes(path.read_bytes())
    (source / "cat" / "<img src=x onerror=alert(1)>\udcff.jpg").write_bytes(b"no picture")
    build(str(source), str(out), Recipe(shard_bytes=30_000), Job(workers=1))
    return out


def made(run: Callable[..., Any], store: Path, out: Path, *options: Any) -> Path:
    run("report", store, "-o", out, *options)
    return out


def test_the_page_shows_everything_and_asks_for_nothing(
    chromium: Browser, page_store: Path, run: Callable[..., Any], tmp_path: Path
) -> None:
    page = made(run, page_store, tmp_path / "r.html")
    chromium.open(page)
    assert chromium.complaints() == []
    asked = [address for address in chromium.requests() if not address.startswith("data:")]
    assert asked == [page.as_uri()]
    text = chromium.ask("document.body.innerText")
    for wanted in ("49", "<b>fox", "not-an-image", "6 not-an-image", "Shuffling", "Provenance", "imagefolder"):
        assert wanted in text
    assert chromium.ask("document.querySelectorAll('.classes i').length") == 3
    heights = chromium.ask(
        "[...document.querySelectorAll('svg.histogram')].map(s => "
        "[...s.querySelectorAll('rect')].map(r => r.getBoundingClientRect().height))"
    )
    assert len(heights) == 4  # height, width, stored and source bytes
    assert all(max(one) > 20 for one in heights)
    assert chromium.ask("document.querySelector('img.sheet').naturalWidth") > 300
    assert chromium.ask("document.querySelector('svg.shuffling circle').getBoundingClientRect().width") > 5
    assert chromium.ask("document.scripts.length") == 0
    drawn = np.asarray(Image.open(io.BytesIO(chromium.picture())).convert("RGB")).reshape(-1, 3)
    assert len(np.unique(drawn, axis=0)) > 100  # the samples are there


@pytest.mark.parametrize("width", [320, 400, 1600])
def test_the_page_fits_any_screen(
    width: int, chromium: Browser, page_store: Path, run: Callable[..., Any], tmp_path: Path
) -> None:
    chromium.open(made(run, page_store, tmp_path / "r.html"), width)
    assert chromium.ask("document.documentElement.scrollWidth") <= width
    script = "[...document.querySelectorAll('p, td, figcaption')].map(e => parseFloat(getComputedStyle(e).fontSize))"
    sizes = chromium.ask(script)
    assert min(sizes) >= 12


def test_a_page_of_splits_and_text(chromium: Browser, run: Callable[..., Any], tmp_path: Path) -> None:
    build(str(make_serials(tmp_path / "s", 60)), str(tmp_path / "o"), Recipe(val=0.3), Job(workers=1))
    chromium.open(made(run, tmp_path / "o", tmp_path / "r.html"))
    assert chromium.ask("[...document.querySelectorAll('section > h2:first-child')].map(h => h.innerText)") == [
        "Split train",
        "Split val",
    ]
    built(write(tmp_path / "d.jsonl", words(200)), tmp_path / "t", tokenized())
    chromium.open(made(run, tmp_path / "t", tmp_path / "t.html"))
    assert "Tokens of a document" in chromium.ask("document.body.innerText")
    assert chromium.complaints() == []


def test_json_says_the_same(run: Callable[..., Any], page_store: Path, tmp_path: Path) -> None:
    found = json.loads(run("report", page_store, "-o", tmp_path / "r.html", "--json").stdout)
    (store,) = found["stores"]
    opened = packer_reader.open(page_store)
    assert sum(store["classes"]["counts"]) == store["samples"] == len(opened)
    for shown in store["histograms"]:
        values = opened.columns.numbers(shown["name"])
        assert sum(shown["counts"]) == len(opened)
        assert (shown["low"], shown["high"]) == (values.min(), values.max())
    assert sum(kind["count"] for kind in store["skipped"]) == 6
    shares = [point["share"] for point in store["shuffling"]["curve"]]
    assert shares == sorted(shares)  # a larger buffer never mixes less
    assert store["shuffling"]["chosen"]["asked"] == "256MB"


def test_options_are_heard_and_errors_are_said(run: Callable[..., Any], page_store: Path, tmp_path: Path) -> None:
    page = made(run, page_store, tmp_path / "r.html", "--samples", 0, "--shuffle-buffer", "10KB", "--batch-size", 8)
    text = page.read_text()
    assert "data:image" not in text
    assert "10KB" in text
    assert "a batch of 8 holds" in text
    assert (
        "does not exist: make it first"
        in run("report", page_store, "-o", tmp_path / "no" / "r.html", exit_code=2).stderr
    )
    manifest = (page_store / "manifest.json").read_bytes()
    assert "end it in .html" in run("report", page_store, "-o", page_store / "manifest.json", exit_code=2).stderr
    for command in (("report", page_store, "-o", page_store / "r.html"),
                    ("inspect", page_store, "--samples", 2, "-o", page_store / "s.png")):  # fmt: skip
        assert "would lie in a store" in run(*command, exit_code=2).stderr
    assert (page_store / "manifest.json").read_bytes() == manifest
    assert "shuffle_buffer" in run("report", page_store, "-o", page, "--shuffle-buffer", "x", exit_code=2).stderr


@given(st.integers(0, 300), st.integers(1, 500))
def test_histograms_of_whole_numbers_have_whole_bins(low: int, span: int) -> None:
    values = np.repeat(np.arange(low, low + span), 7)
    found = histogram(values, "x", "x", lambda _: None)
    assert sum(found["counts"]) == len(values)
    assert len(found["counts"]) <= 32
    assert len(set(found["counts"][:-1])) <= 1  # each is as wide as the others, but for the last
    assert found["edges"][0] == low
    assert found["edges"][-1] > low + span - 1


@given(st.lists(st.tuples(st.text(), st.integers(0, 10**6)), min_size=1, max_size=90))
def test_any_class_names_make_a_sound_page(classes: list[tuple[str, int]]) -> None:
    store = packer_reader.open(_SMALL)
    found = figures(store, 8, "1MB")
    counts = [count for _, count in classes]
    order = sorted(range(len(counts)), key=lambda index: -counts[index])
    found["classes"] = {
        "names": [name for name, _ in classes],
        "counts": counts,
        "drawn": order[:40],
        "falling": sorted(counts, reverse=True),
        "most": max(1, *counts, 1),
    }
    page = render(NASTY, [found], [None])
    assert "<script" not in page
    assert len(re.findall(r"<i style=\"width:[0-9.]+%\"></i>", page)) == min(40, len(classes))


_SMALL = Path(__file__).parent.parent / "golden" / "v1" / "tar"
