"""What a case may expect of a run, and whether any acceptable outcome came about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import webdataset

from tests.corpus.built import Built, is_store
from tests.corpus.reports import ABOUT_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.corpus.scene import Scene

__all__ = ["ABOUT_RUNS", "ABOUT_STORES", "alternatives", "problems_of", "problems_of_store"]

Expect = dict[str, Any]
_PICTURES = {"jpg", "png", "webp", "npy"}


def _n_samples(want: int | None, _: Expect, built: Built) -> list[str]:
    counts = built.manifest["counts"]
    problems = [] if counts["found"] == counts["written"] + counts["skipped"] else [f"counts do not add up: {counts}"]
    if not len(built.store) == counts["written"] == len(built.names):
        problems.append(f"{len(built.store)} samples can be read, counts are {counts}")
    return problems + ([] if want in {None, counts["written"]} else [f"{counts['written']} samples, not {want}"])


def _n_skipped(want: int | None, _: Expect, built: Built) -> list[str]:
    count, lines = built.manifest["counts"]["skipped"], built.reported
    problems = [] if count == len(lines) else [f"{count} skipped, errors.jsonl has {len(lines)} lines"]
    problems += [f"no reason for {line['name']!r}" for line in lines if not (line["reason"] and line["class"])]
    return problems + ([] if want in {None, count} else [f"{count} skipped, not {want}: {lines}"])


def _classes(want: dict[str, int], _: Expect, built: Built) -> list[str]:
    opened = {name: index for index, name in enumerate(built.store.classes or ())}
    written = {name: index for index, name in enumerate(built.manifest["classes"] or ())}
    return [] if opened == written == want else [f"classes are {written}, not {want}"]


def _shuffled(want: bool, _: Expect, built: Built) -> list[str]:
    found = built.manifest["shuffled"] and built.names != sorted(built.names)
    return [] if found == want else [f"the stored order is {built.names}"]


def _keys_unique(want: bool, _: Expect, built: Built) -> list[str]:
    keys = built.keys()
    found = len(set(keys)) == len(keys) == len(built.store)
    return [] if found == want else [f"keys are {keys}"]


def _wds_groups(want: int, _: Expect, built: Built) -> list[str]:
    if built.store.manifest.kind != "tar":
        return []
    shards = [str(path) for path in built.shards]
    groups = list(webdataset.WebDataset(shards, shardshuffle=False, empty_check=False))
    pictures = [len(_PICTURES & set(group)) for group in groups]
    return [] if pictures == [1] * want else [f"webdataset sees groups with {pictures} pictures, not {want} with one"]


def _names_roundtrip(want: bool, expect: Expect, built: Built) -> list[str]:
    names = [entry["name"] for entry in expect["samples"]]
    found = sorted(built.names) == sorted(names) and all(built.names[built.store.find(name)] == name for name in names)
    return [] if found == want else [f"names come back as {built.names}"]


def _no_absolute_paths(want: bool, _: Expect, built: Built) -> list[str]:
    found = [text for text in _strings(built.manifest) if text.startswith("/") or str(built.path.parent) in text]
    return found if want else []


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, held in value.items():
            yield key
            yield from _strings(held)
    elif isinstance(value, list):
        for held in value:
            yield from _strings(held)
    elif isinstance(value, str):
        yield value


ABOUT_STORES: dict[str, Callable[[Any, Expect, Built], list[str]]] = ABOUT_SAMPLES | {
    "n_samples": _n_samples,
    "n_skipped": _n_skipped,
    "classes": _classes,
    "shuffled": _shuffled,
    "keys_unique": _keys_unique,
    "wds_groups": _wds_groups,
    "names_roundtrip": _names_roundtrip,
    "no_absolute_paths_in_manifest": _no_absolute_paths,
}
"""Keys of `expect` that speak of a store, with what finds problems: (value, expect, store)."""


def _error(want: bool | None, _: Expect, scene: Scene) -> list[str]:
    stores = [path for path in scene.outputs if is_store(path)]
    last = scene.done[-1] if scene.done else None
    if last is None:
        return ["no build has ended by itself"]
    if want is True:
        problems = [] if last.code else [f"an error was expected: {last}"]
        return problems + [f"{path.name!r} looks like a finished store" for path in stores]
    if want is False:
        problems = [f"no error was expected: {last}"] if last.code else []
        return problems + ([] if scene.good else ["there is no store"])
    return []


def _absent(want: list[str], _: Expect, scene: Scene) -> list[str]:
    places = [place for name in want for place in (scene.place(name), scene.root / name, scene.case.folder / name)]
    return [f"{place} exists" for place in places if place.exists() or place.is_symlink()]


def _present(want: list[str], _: Expect, scene: Scene) -> list[str]:
    return [f"{name!r} is gone" for name in want if not ((scene.root / name).exists() or scene.place(name).exists())]


def _source_unchanged(want: bool, _: Expect, scene: Scene) -> list[str]:
    return [f"the source's {name!r} changed" for name in scene.changed_source()] if want else []


def _max_seconds(want: float, _: Expect, scene: Scene) -> list[str]:
    return [f"took {done.seconds:.1f} s: {done}" for done in scene.done if done.seconds > want]


def _max_rss(want: float, _: Expect, scene: Scene) -> list[str]:
    return [f"held {done.rss_mb:.0f} MB: {done}" for done in scene.done if done.rss_mb > want]


def _warned(want: bool, _: Expect, scene: Scene) -> list[str]:
    found = any(line.startswith(("note:", "warning:")) for line in scene.done[-1].stderr.splitlines())
    return [] if found == want else [f"notices: {scene.done[-1]}"]


def _steps_error(_: str, __: Expect, scene: Scene) -> list[str]:
    return [] if scene.refusals else ["no read was refused"]


ABOUT_RUNS: dict[str, Callable[[Any, Expect, Scene], list[str]]] = {
    "error": _error,
    "must_not_exist": _absent,
    "must_exist": _present,
    "source_unchanged": _source_unchanged,
    "max_seconds": _max_seconds,
    "max_rss_mb": _max_rss,
    "warned": _warned,
    "steps_error": _steps_error,
}
"""Keys of `expect` that speak of a run as a whole, with what finds problems: (value, expect, scene)."""


def alternatives(expect: Expect) -> list[Expect]:
    """Every acceptable outcome: the expected one, and those that replace some of its keys."""
    base = {key: value for key, value in expect.items() if key != "or"}
    return [base, *(base | changes for changes in expect.get("or", []))]


def problems_of_store(expect: Expect, built: Built) -> list[str]:
    """What is wrong with one store."""
    known = [key for key in expect if key in ABOUT_STORES]
    return [f"{built.path.name}: {text}" for key in known for text in ABOUT_STORES[key](expect[key], expect, built)]


def problems_of(scene: Scene) -> list[str]:
    """What is wrong with a run, compared with the acceptable outcome that it is nearest to; nothing when it is good."""
    found = [_compared(expect, scene) for expect in alternatives(scene.case.expect)]
    return scene.problems + min(found, key=len)


def _compared(expect: Expect, scene: Scene) -> list[str]:
    expect = {"source_unchanged": True} | expect
    problems = [] if "steps_error" in expect else list(scene.refusals)
    known = [key for key in expect if key in ABOUT_RUNS]
    problems += [text for key in known for text in ABOUT_RUNS[key](expect[key], expect, scene)]
    if expect["error"] is not True:
        stores = [scene.built(path) for path in sorted(scene.good) if is_store(path)]
        problems += [text for built in stores for text in problems_of_store(expect, built)]
    return problems
