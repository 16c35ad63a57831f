"""Imports go one way, and heavy ones have one home each."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = {
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"): path
    for package in ("packer", "packer_reader")
    for path in sorted((ROOT / package).rglob("*.py"))
}

BASE = {
    "packer_reader.machine",
    "packer_reader.locks",
    "packer_reader.errors",
    "packer_reader.permutation",
    "packer_reader.sizes",
    "packer_reader._version",
}
FORMAT = BASE | {"packer_reader.format"}
STORES = FORMAT | {"packer_reader.stores", "packer_reader.decode", "packer_reader.jpeg"}
READER = STORES | {
    "packer_reader.batch", "packer_reader.crops", "packer_reader.resize", "packer_reader.opencv",
    "packer_reader.order", "packer_reader.batches", "packer_reader.epoch", "packer_reader.ranks",
    "packer_reader.arguments",
    "packer_reader.shuffle",
    "packer_reader.fill", "packer_reader.ring", "packer_reader.handle", "packer_reader.lease",
    "packer_reader.sender", "packer_reader.course",
    "packer_reader.state", "packer_reader.skipping", "packer_reader.iteration", "packer_reader.recall",
    "packer_reader.dataset", "packer_reader.mapdataset", "packer_reader.dataloader", "packer_reader.device",
    "packer_reader.view", "packer_reader.pixels", "packer_reader.cache", "packer_reader.warm",
    "packer_reader.footprint", "packer_reader.packed", "packer_reader.boxes", "packer_reader.ragged",
    "packer_reader.tokens", "packer_reader.sequences", "packer_reader.together",
}  # fmt: skip
SHARED = STORES | {"packer_reader.boxes", "packer_reader.check", "packer_reader.summary", "packer_reader.resize"}
MAY_IMPORT = {
    "packer_reader.errors": set(),
    "packer_reader.permutation": set(),
    "packer_reader.machine": set(),
    "packer_reader.locks": set(),
    "packer_reader.sizes": {"packer_reader.errors"},
    "packer_reader.format": FORMAT,
    "packer_reader.order": BASE,
    "packer_reader.batches": BASE | {"packer_reader.order"},
    "packer_reader.epoch": BASE,
    "packer_reader.arguments": BASE,
    "packer_reader.ranks": BASE,
    "packer_reader.state": BASE | {"packer_reader.arguments", "packer_reader.epoch"},
    "packer_reader.iteration": BASE | {"packer_reader.epoch"},
    "packer_reader.device": BASE,
    "packer_reader.course": BASE
    | {
        "packer_reader.batches",
        "packer_reader.epoch",
        "packer_reader.order",
        "packer_reader.ranks",
        "packer_reader.state",
    },
    "packer_reader.skipping": BASE,
    "packer_reader.lease": BASE,
    "packer_reader.handle": BASE | {"packer_reader.lease"},
    "packer_reader.ring": BASE | {"packer_reader.handle", "packer_reader.lease"},
    "packer_reader.packed": set(),
    "packer_reader.sender": BASE | {"packer_reader.ring", "packer_reader.packed"},
    "packer_reader.recall": STORES
    | {
        "packer_reader.arguments",
        "packer_reader.batches",
        "packer_reader.order",
        "packer_reader.ranks",
        "packer_reader.shuffle",
    },
    "packer_reader.opencv": set(),
    "packer_reader.resize": {"packer_reader.opencv"},
    "packer_reader.jpeg": set(),
    "packer_reader.boxes": set(),
    "packer_reader.ragged": set(),
    "packer_reader.tokens": STORES | {"packer_reader.ragged", "packer_reader.pixels"},
    "packer_reader.sequences": STORES | {"packer_reader.arguments", "packer_reader.ragged"},
    "packer_reader.decode": FORMAT | {"packer_reader.jpeg"},
    "packer_reader.pixels": STORES,
    "packer_reader.footprint": set(),
    "packer_reader.warm": STORES,
    "packer_reader.stores": STORES | {"packer_reader.arguments"},
    "packer_reader.check": STORES,
    "packer_reader.diff": STORES,
    "packer_reader.stall": {"packer_reader.machine"},
    "packer_reader.summary": STORES,
    "packer_reader": READER | {"packer_reader.check", "packer_reader.summary"},
    "packer.plan": BASE,
    "packer.text": BASE | {"packer_reader.format.fields"},
    "packer.recipe": BASE | {"packer.text"},
    "packer.sample": set(),
    "packer.tokens": SHARED
    | {
        "packer.checksum",
        "packer.recipe",
        "packer.sample",
        "packer.sinks.fragment",
        "packer.sources",
        "packer.stored",
        "packer.text",
        "packer.tokens",
        "packer.unit",
        "packer.whereabouts",
    },
    "packer.work": {"packer.images", "packer.tokens.unit"},
    "packer.transforms": SHARED | {"packer.recipe", "packer.transforms"},
    "packer.sources": SHARED | {"packer.fields", "packer.sample", "packer.sources", "packer.text"},
    "packer.runners": BASE | {"packer.runners"},
    "packer.stored": SHARED | {"packer.transforms"},
    "packer.reuse": SHARED | {"packer.recipe", "packer.stored", "packer.sources.refs"},
    "packer.output": SHARED
    | {
        "packer.output",
        "packer.recipe",
        "packer.whereabouts",
        "packer.rows",
        "packer.stored",
        "packer.sample",
        "packer.sinks.base",
        "packer.unit",
    },
    "packer.sinks": SHARED | {"packer.checksum", "packer.sinks", "packer.rows", "packer.unit", "packer.output.journal"},
    "packer.unit": {"packer.plan", "packer.sources.refs"},
    "packer.images": SHARED
    | {
        "packer.checksum",
        "packer.sample",
        "packer.sinks.fragment",
        "packer.sources.base",
        "packer.stored",
        "packer.unit",
        "packer.whereabouts",
    },
    "packer.gather": SHARED | {"packer.plan", "packer.sources.refs"},
    "packer.measure": READER | {"packer.measure", "packer.sources.walk", "packer_reader", "packer_reader.view"},
    "packer.page": SHARED | {"packer_reader"},
    "packer.drive": SHARED
    | {"packer.checksum", "packer.unit", "packer.whereabouts", "packer.work", "packer.output.journal"},
    "packer.sheet": SHARED,
    "packer.cli": SHARED
    | {"packer", "packer.measure", "packer_reader.diff", "packer_reader.recall", "packer_reader.arguments"},
    "packer": SHARED | {"packer"},
}
"""Module or package to what it may import, itself included where it has several modules. The longest name counts."""

HOMES = {
    "matplotlib": ("packer.measure.plot",),
    "jinja2": ("packer.page.render",),
    "click": ("packer.cli",),
    "tqdm": ("packer.cli.progress", "packer_reader.warm"),
    "tarfile": ("packer.sources.archive", "packer_reader.check"),
    "xxhash": ("packer.checksum",),
    "zlib_ng": ("packer_reader.format.crc",),
    "zipfile": ("packer.sources.archive",),
    "lmdb": ("packer.sinks.lmdb", "packer_reader.stores.lmdb"),
    "yaml": ("packer.sources.annotated",),
    "xml": ("packer.sources.annotated",),
    "braceexpand": ("packer.sources.detect",),
    "pyarrow": ("packer.sources.lists",),
    "csv": ("packer.sources.lists",),
    "msgpack": ("packer_reader.format.record",),
    "simplejpeg": ("packer_reader.jpeg", "packer.transforms.decode", "packer.transforms.jpeg",
                   "packer.transforms.encode", "packer.measure.limits"),
    "PIL": ("packer.transforms.decode", "packer.transforms.jpeg", "packer.transforms.picture", "packer_reader.fill",
            "packer.sheet", "packer.transforms.masks", "packer.measure.stages", "packer.page.render"),
    "cv2": ("packer.transforms", "packer.runners.processes", "packer.measure.limits"),
    "torch": ("packer_reader.opencv", "packer_reader.resize", "packer_reader.batch", "packer_reader.epoch",
              "packer_reader.ranks",
              "packer_reader.dataset", "packer_reader.mapdataset", "packer_reader.dataloader",
              "packer_reader.iteration", "packer_reader.skipping", "packer_reader.fill",
              "packer_reader.sender", "packer_reader.packed", "packer_reader.boxes",
              "packer_reader.device", "packer.runners.processes",
              "packer_reader.ragged", "packer_reader.tokens", "packer_reader.together",
              "packer.measure.tune", "packer.measure.script", "packer.measure.stages"),
    "tokenizers": ("packer.tokens.tokenizer", "packer.tokens.train"),
    "sentencepiece": ("packer.tokens.tokenizer",),
    "zstandard": ("packer.sources.unpack",),
    "gzip": ("packer.sources.unpack",),
}  # fmt: skip


def imports(path: Path) -> set[str]:
    """Every module that is imported at run time, anywhere in the file."""
    tree = ast.parse(path.read_text())
    typing_only = {
        node for top in ast.walk(tree) if isinstance(top, ast.If) and "TYPE_CHECKING" in ast.dump(top.test)
        for node in ast.walk(top)
    }  # fmt: skip
    found = set()
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def inside(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module: str) -> None:
    rule = max((name for name in MAY_IMPORT if module == name or module.startswith(f"{name}.")), key=len)
    allowed = MAY_IMPORT[rule]
    ours = {name for name in imports(MODULES[module]) if name.split(".")[0] in {"packer", "packer_reader"}}
    assert {name for name in ours if not inside(name, allowed)} == set()


def test_the_reader_never_imports_the_builder() -> None:
    for module, path in MODULES.items():
        if module.startswith("packer_reader"):
            assert not [name for name in imports(path) if name.split(".")[0] == "packer"], module


@pytest.mark.parametrize("library", HOMES)
def test_heavy_libraries_have_their_homes(library: str) -> None:
    users = {module for module, path in MODULES.items() if library in {name.split(".")[0] for name in imports(path)}}
    assert {user for user in users if not inside(user, set(HOMES[library]))} == set()


def test_there_are_no_import_cycles() -> None:
    edges = {m: {n for n in imports(p) if n in MODULES and n != m} for m, p in MODULES.items() if "." in m}
    state: dict[str, int] = {}

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert state.get(module) != 1, " -> ".join((*path, module))
        if state.get(module) == 2:
            return
        state[module] = 1
        for target in edges.get(module, ()):
            visit(target, (*path, module))
        state[module] = 2

    for module in edges:
        visit(module, ())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import packer_reader", "torch cv2 PIL lmdb numpy"),
        ("import packer", "torch cv2 PIL lmdb numpy"),
        ("import packer_reader.format.manifest, packer_reader.format.record", "torch lmdb PIL click"),
        ("import packer_reader.stores.tar, packer_reader.stores.lmdb, packer_reader.order", "torch cv2 PIL click"),
        ("from packer_reader import StreamDataset", "cv2 PIL click"),
        ("import packer.convert", "torch cv2 PIL simplejpeg"),
        ("import packer.transforms.image", "torch"),
    ],
)  # fmt: skip
def test_imports_load_only_what_they_need(statement: str, absent: str) -> None:
    program = f"import sys; {statement}; print([m for m in {absent.split()} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
