"""What a case may say of samples and of the inputs that became none."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.corpus.samples import PARAMETERS, PICTURE
from tests.corpus.values import VALUES, cell, same_cell

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.corpus.built import Built

__all__ = ["ABOUT_SAMPLES", "SAMPLE_CHECKS"]

Expect = dict[str, Any]
SAMPLE_CHECKS = PICTURE | VALUES
"""Keys of an entry of `samples`, and what each means."""


def _samples(want: list[Expect], expect: Expect, built: Built) -> list[str]:
    problems = []
    used: defaultdict[str, set[int]] = defaultdict(set)
    for entry in want:
        name = entry["name"]
        # Samples of one name lie in the store in any order: an entry is about the first one that fits.
        found = {
            number: _entry(_changed(entry, expect), built, number)
            for number in built.numbers(name)
            if number not in used[name]
        }
        if found:
            number = min(found, key=lambda number: (len(found[number]), number))
            problems += [f"{name!r}: {text}" for text in found[number]]
            used[name].add(number)
        elif name not in expect.get("may_skip", []) and not (used[name] and _drops_repeats(expect)):
            problems.append(f"{name!r} is no sample")
    return problems


def _drops_repeats(expect: Expect) -> bool:
    """Whether an alternative has fewer samples than are listed: rows that came twice were dropped."""
    return expect["n_samples"] is not None and bool(expect["n_samples"] < len(expect["samples"]))


def _changed(entry: Expect, expect: Expect) -> Expect:
    """An entry with the changes that an alternative makes to it."""
    changed = dict(entry)
    for key, changes in (("label", "labels"), ("text", "texts")):
        if entry["name"] in expect.get(changes, {}):
            changed[key] = expect[changes][entry["name"]]
    if expect.get("classes_by_leaf"):
        changed.pop("label", None)
    return changed


def _entry(entry: Expect, built: Built, number: int) -> list[str]:
    sample = built.sample(number)
    failed = [key for key in entry if key not in PARAMETERS and not SAMPLE_CHECKS[key](entry[key], entry, sample)]
    about = {name: getattr(value, "shape", value) for name, value in sample.fields.items()}
    return [f"{key} is not {entry[key]!r} ({about})" for key in failed]


def _changed_samples(want: Mapping[str, Any], expect: Expect, built: Built) -> list[str]:
    """`labels` and `texts`: also of samples that only an alternative has."""
    listed = {entry["name"] for entry in expect.get("samples", [])}
    key = "label" if want is expect.get("labels") else "text"
    added = [{"name": name, key: value} for name, value in want.items() if name not in listed]
    return _samples(added, expect | {"samples": added}, built) if added else []


def _skipped(want: list[Expect], expect: Expect, built: Built) -> list[str]:
    """Each skipped input is reported; an alternative that skips fewer has the others as samples, or says so."""
    reported = {alias for line in built.reported for alias in built.aliases(line["name"])}
    added = {entry["name"] for entry in expect.get("samples_add", [])} | set(expect.get("may_keep", []))
    names = {entry["name"] for entry in want} - added
    count = expect["n_skipped"]
    silent = names - reported
    if count is not None and count < len(names):
        silent -= {name for name in silent if built.numbers(name) or expect.get("warned")}
    problems = [f"{name!r} is not in errors.jsonl" for name in sorted(silent)]
    allowed = names | set(expect.get("may_skip", [])) | added
    if count is not None and count <= len(names):
        foreign = [line["name"] for line in built.reported if not built.aliases(line["name"]) & allowed]
        problems += [f"{name!r} was skipped and should not be" for name in foreign]
    return problems


def _may_skip(want: list[str], _: Expect, built: Built) -> list[str]:
    reported = {alias for line in built.reported for alias in built.aliases(line["name"])}
    return [
        f"{name!r} is neither a sample nor reported" for name in want if not (built.numbers(name) or name in reported)
    ]


def _ignored(want: list[str], _: Expect, built: Built) -> list[str]:
    return [f"{name!r} became a sample" for name in want if built.numbers(name)]


def _captions(want: Mapping[str, str], _: Expect, built: Built) -> list[str]:
    found = {name: [cell(built.sample(n), "caption") for n in built.numbers(name)] for name in want}
    return [f"caption of {name!r} is {found[name]!r}" for name, text in want.items() if found[name] != [text]]


def _rows(want: list[Expect], expect: Expect, built: Built) -> list[str]:
    problems = []
    for place, row in enumerate(want):
        numbers = built.numbers(f"row {place}")
        if not numbers and f"row {place}" not in expect.get("may_skip", []):
            problems.append(f"row {place} is missing")
        for number in numbers:
            sample = built.sample(number)
            wrong = [column for column, value in row.items() if not same_cell(cell(sample, column), value)]
            problems += [f"row {place}: {column} is {cell(sample, column)!r}" for column in wrong]
    return problems


def _classes_by_leaf(_: bool, expect: Expect, built: Built) -> list[str]:
    problems = []
    for entry in expect["samples"]:
        leaf = entry["name"].split("/")[-2]
        for sample in map(built.sample, built.numbers(entry["name"])):
            found = (sample.classes or ())[sample.fields["label"]]
            problems += [] if found == leaf else [f"{entry['name']!r} has class {found!r}"]
    return problems


ABOUT_SAMPLES: dict[str, Callable[[Any, Expect, Built], list[str]]] = {
    "samples": _samples,
    "samples_add": _samples,
    "labels": _changed_samples,
    "texts": _changed_samples,
    "skipped": _skipped,
    "may_skip": _may_skip,
    "ignored": _ignored,
    "captions": _captions,
    "rows": _rows,
    "classes_by_leaf": _classes_by_leaf,
}
"""Keys of `expect` that speak of samples, with what finds problems: (value, expect, store)."""
