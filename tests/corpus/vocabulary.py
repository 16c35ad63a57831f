"""Every key and word of a `case.json` that this package acts on. Anything else fails the case.

Checks are looked up by key in tables, and the vocabulary is made from these tables, so that what is known is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.corpus.changes import CHANGES, PARTS
from tests.corpus.commands import HINTS, MODES, ON_ERROR, RESIZE
from tests.corpus.expectations import ABOUT_RUNS, ABOUT_STORES
from tests.corpus.inspections import CHECKS
from tests.corpus.orders import PROBES
from tests.corpus.reads import UNIONS
from tests.corpus.reports import SAMPLE_CHECKS
from tests.corpus.samples import PARAMETERS
from tests.corpus.steps import BUILDS, EXITS, MOMENTS, STEPS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["unknown"]

Document = dict[str, Any]

TOP = {"schema", "id", "kind", "what", "log", "run", "expect", "not_created"}
"""`kind`, `what`, `log` and `not_created` are for people."""
SOURCE_KEYS: Mapping[str, Collection[str]] = {
    "imagefolder": (),
    "tar": (),
    "csv": ("path_col", "label_col"),
    "jsonl": ("path_col", "label_col"),
    "jsonl-text": ("text_key",),
    "text": ("text_key",),
    "mask-pairs": ("images_dir", "masks_dir"),
    "npy": (),
    "tabular": ("label_col", "image_col"),
}
RUN = {"cmd", "source_type", "source", "mode", "resize", "on_error", "want_shards", "steps"}
OPTIONS = {"samples_per_shard", "seed", "workers", "overwrite"} | HINTS
_BUILD = {"op", "to", "options", "env", "limit_fsize", "disk_bytes"}
_READ = {"op", "from", "workers", "batch", "buffer", "seed", "union", "same_as", "max_seconds"}
STEP_KEYS: Mapping[str, Collection[str]] = {
    "build": _BUILD | {"exit"},
    "parallel": _BUILD | {"exit", "n"},
    "signal": _BUILD | {"sig", "when", "after_s"},
    "change": {"op", "what", "target", "to", "with"},
    "check": {"op", "what", "target"},
    "peek": {"op", "from"},
    "pickle": {"op", "from"},
    "resume": _READ | {"after_batches"},
    "read": _READ
    | {"world", "epochs", "persistent", "start", "drop_last", "equal_batches", "batches", "epochs_differ", "error"}
    | {"id", "after_peek", "probe", "probe_unique"},
}
ONLY_IN_OR = {"may_skip", "may_keep", "samples_add", "labels", "texts", "warned", "classes_by_leaf", "steps_error"}
FOR_PEOPLE = {"notes", "notes2"}
EXPECT = (ABOUT_RUNS.keys() | ABOUT_STORES.keys() | {"may_keep"}) | FOR_PEOPLE
"""`may_keep` changes what `skipped` means."""

WORDS: Mapping[str, Collection[Any]] = {
    "schema": (1,),
    "cmd": ("build", "shard", "either"),
    "source_type": SOURCE_KEYS.keys(),
    "mode": MODES.keys(),
    "on_error": ON_ERROR.keys(),
    "op": STEPS.keys() | set(BUILDS),
    "exit": EXITS.keys(),
    "when": MOMENTS.keys() | {"after_s"},
    "sig": ("KILL", "TERM", "INT", "HUP"),
    "union": UNIONS,
    "start": ("fork", "spawn", "forkserver"),
    "probe": PROBES.keys(),
    "error": (True, False, None, "any"),
}
"""Keys that take one of a few words."""


def unknown(document: Document) -> list[str]:
    """Everything in a case that nothing here acts on, each with its place."""
    run = document.get("run", {})
    known = RUN | set(SOURCE_KEYS.get(run.get("source_type"), ()))
    found = [*_keys("", document, TOP), *_words("", document), *_keys("run.", run, known), *_words("run.", run)]
    found += _keys("run.resize.", run.get("resize") or {}, RESIZE.keys())
    found += [text for step in run.get("steps", []) for text in _step(step)]
    expect = document.get("expect", {})
    found += _expect("expect.", expect, (EXPECT | {"or"}) - ONLY_IN_OR)
    found += [text for other in expect.get("or", []) for text in _expect("expect.or.", other, EXPECT)]
    return found


def _keys(place: str, held: Document, known: Collection[str]) -> list[str]:
    return [f"{place}{key}" for key in held if key not in known]


def _words(place: str, held: Document) -> list[str]:
    return [f"{place}{key}={held[key]!r}" for key, words in WORDS.items() if key in held and held[key] not in words]


def _step(step: Document) -> list[str]:
    place = f"step {step.get('op')}."
    found = [*_keys(place, step, STEP_KEYS.get(step.get("op", ""), {"op"})), *_words(place, step)]
    found += _keys(f"{place}options.", step.get("options", {}), OPTIONS)
    whats = {"change": CHANGES.keys(), "check": CHECKS.keys()}.get(step.get("op", ""), ())
    if "what" in step and step["what"] not in whats:
        found.append(f"{place}what={step['what']!r}")
    for key in ("target", "with"):
        part = step[key].partition(":")[2] if isinstance(step.get(key), str) else ""
        if part and part not in PARTS:
            found.append(f"{place}{key}=...:{part}")
    return found


def _expect(place: str, expect: Document, known: Collection[str]) -> list[str]:
    found = [*_keys(place, expect, known), *_words(place, expect)]
    for key in ("samples", "samples_add"):
        for entry in expect.get(key, []):
            found += _keys(f"{place}{key}.", entry, PARAMETERS | SAMPLE_CHECKS.keys())
    for entry in expect.get("skipped", []):
        found += _keys(f"{place}skipped.", entry, {"name", "why"})
    return found
