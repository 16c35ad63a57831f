"""Splits: by hash, stable as a set grows, whole by group, exact by class when asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from packer import Recipe
from packer.split import in_val
from packer_reader.errors import UsageError

NAMES = [f"{'ab'[n % 2]}/patient{n // 10:02d}_{n:04d}.png" for n in range(1000)]
LABELS = np.arange(1000) % 2


def val(names: list[str], **options: Any) -> set[str]:
    labels = np.array([int(name.startswith("b/")) for name in names])
    chosen = in_val(Recipe(**({"val": 0.2} | options)), names, labels)
    return {name for name, inside in zip(names, chosen.tolist(), strict=True) if inside}


def test_the_share_is_about_right_and_the_seed_counts() -> None:
    assert 150 < len(val(NAMES)) < 250
    assert val(NAMES) == val(NAMES)
    assert val(NAMES) != val(NAMES, seed=1)


def test_a_growing_set_moves_nothing() -> None:
    assert val(NAMES[::3]) == val(NAMES) & set(NAMES[::3])


def test_groups_stay_whole() -> None:
    chosen = val(NAMES, group_by=r"patient(\d+)")
    groups = {name.split("patient")[1][:2] for name in chosen}
    assert chosen == {name for name in NAMES if name.split("patient")[1][:2] in groups}
    assert 0 < len(groups) < 100


def test_a_group_that_matches_nothing_is_named() -> None:
    with pytest.raises(UsageError, match=r"--group-by 'dog' does not match 'a/patient00_0000.png'"):
        val(NAMES, group_by="dog")


def test_stratified_classes_have_equal_shares() -> None:
    chosen = val(NAMES, stratify=True)
    assert sum(name.startswith("a/") for name in chosen) == sum(name.startswith("b/") for name in chosen) == 100


def test_names_that_are_no_text_can_be_split() -> None:
    assert len(val(["bad\udcff", "b/x"], val=0.9999)) == 2


def test_golden_membership() -> None:
    assert sorted(val(NAMES[:20])) == [
        "a/patient01_0010.png",
        "a/patient01_0014.png",
        "a/patient01_0016.png",
        "b/patient01_0015.png",
    ]
