"""What a loop gets is the same over every way in which batches travel: tests of it run once more without the ring."""

from __future__ import annotations

import os

import pytest

from packer_reader.ring import Ring

BOTH = {
    "test_damage", "test_ddp", "test_device", "test_epoch", "test_map", "test_processes", "test_ranks", "test_recall",
    "test_stream", "test_views",
}  # fmt: skip
"""Modules whose promises do not hang on the transport; the others are about one of them, or about no loop."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in BOTH:
        slow = pytest.param("plain", marks=pytest.mark.slow)
        metafunc.parametrize("_transport", ["ring", slow], indirect=True)


@pytest.fixture(autouse=True)
def _transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `plain`, a system that lacks what the ring takes, as workers see it too."""
    if getattr(request, "param", "ring") == "plain":
        monkeypatch.delattr(os, "memfd_create")
        assert not Ring.works()
