"""The README and the specification tell the truth: their code runs, and everything public is in them."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shlex
import tarfile
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from PIL import Image

import packer_reader
from packer import Job, Recipe, build
from packer.cli.main import COMMANDS, cli
from packer.sources.imagefolder import SPLIT_NAMES
from packer.sources.walk import EXTENSIONS
from packer_reader import StreamDataset, errors
from packer_reader.format.manifest import Manifest
from tests.conftest import make_photos

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SPECIFICATION = (ROOT / "packer_reader" / "format" / "README.md").read_text()


@pytest.mark.usefixtures("careless_libraries")
def test_the_readmes_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    source = make_photos(tmp_path / "imagefolder", 700)
    for out, container in (("out.lmdb", "lmdb"), ("out", "tar")):
        recipe = Recipe(container=container, resize=(48,), fit="crop", shard_bytes=900_000)  # type: ignore[arg-type]
        build(str(source), out, recipe, Job(workers=1))
    assert (tmp_path / "out" / "train-000002.tar").exists()
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"text": f"no. {n} " * n}) + "\n" for n in range(1, 90)))
    for command in ("build docs.jsonl corpus --pack bestfit --seq-len 129", "build docs.jsonl documents.lmdb"):
        assert CliRunner().invoke(cli, shlex.split(command), catch_exceptions=False).exit_code == 0
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = re.findall(r"```python\n(?!# recipe)(.*?)```", README, re.DOTALL)  # recipes: interop/test_frameworks.py
    assert len(blocks) >= 4
    for block in blocks:
        exec(block, names)
    assert len(packer_reader.open("copy.lmdb")) == 600


def test_the_readmes_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = make_photos(tmp_path / "imagefolder", 20)
    rows = ["path,label,words"]
    for number, path in enumerate(sorted(source.rglob("*.jpg"))):
        rows.append(f"{path.relative_to(tmp_path)},{number % 2},no. {number}")
        for folder in ("images", "masks"):
            (tmp_path / "segmentation" / folder).mkdir(parents=True, exist_ok=True)
        with Image.open(path) as picture:
            picture.save(tmp_path / "segmentation" / "images" / f"{number}.jpg")
            Image.new("L", picture.size, number).save(tmp_path / "segmentation" / "masks" / f"{number}.png")
    for folder in ("shards", "captioned"):
        (tmp_path / folder).mkdir()
    for shard in range(4):
        with tarfile.open(tmp_path / "shards" / f"part-{shard:03}.tar", "w") as archive:
            for path in sorted(source.rglob("*.jpg"))[shard::4]:
                archive.add(path, path.name)
                (tmp_path / "captioned" / path.name).write_bytes(path.read_bytes())
                (tmp_path / "captioned" / f"{path.stem}.txt").write_text(path.stem)
                archive.add(tmp_path / "captioned" / f"{path.stem}.txt", f"{path.stem}.txt")
    images = [
        {"id": number, "file_name": str(path.relative_to(source))} for number, path in enumerate(source.rglob("*.jpg"))
    ]
    boxes = [{"image_id": 0, "category_id": 9, "bbox": [1, 1, 9, 9]}]
    (tmp_path / "coco" / "annotations").mkdir(parents=True)
    (tmp_path / "coco" / "train2017").symlink_to(source)
    (tmp_path / "coco" / "annotations" / "instances_train2017.json").write_text(
        json.dumps({"images": images, "annotations": boxes, "categories": [{"id": 9, "name": "x"}]})
    )
    build(str(source), "out.lmdb", Recipe(container="lmdb"), Job(workers=1))
    (tmp_path / "photos.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"text": f"no. {n} " * n}) + "\n" for n in range(1, 90)))
    commands = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
    commands = [line for line in commands if line.startswith("packer ")]
    assert len(commands) >= 2
    for command in commands:
        done = CliRunner().invoke(cli, shlex.split(command)[1:], catch_exceptions=False)
        assert done.exit_code == 0, f"{command}: {done.output}"
    assert packer_reader.open("masks.lmdb")[0]["mask"].shape == (64, 64)
    assert len(packer_reader.open("reshuffled")) == 20
    assert len(packer_reader.open("repacked.lmdb")) == len(packer_reader.open("captioned.lmdb")) == 20
    assert packer_reader.open("captioned.lmdb").manifest.field("txt") is not None
    assert packer_reader.open("captions.lmdb")[0]["caption"].startswith("no. ")
    assert packer_reader.open("corpus")[0]["tokens"].shape == (129,)
    assert len(packer_reader.open("documents.lmdb")) == 89
    assert (tmp_path / "corpus_text_document.idx").exists()


def options() -> set[str]:
    context = click.Context(cli)
    commands = [cli.get_command(context, name) for name in COMMANDS]
    return {
        opt
        for command in commands
        if command
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for opt in parameter.opts
    }


@pytest.mark.parametrize("option", sorted(options()))
def test_each_option_is_in_the_readme(option: str) -> None:
    assert re.search(rf"{re.escape(option)}\b", README)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_in_the_readme(command: str) -> None:
    assert f"packer {command}" in README


@pytest.mark.parametrize("argument", [p for p in inspect.signature(StreamDataset.__init__).parameters if p != "self"])
def test_each_argument_is_in_the_readme(argument: str) -> None:
    assert re.search(rf"`[^`]*\b{argument}\b[^`]*`", README)


def test_exit_codes_extensions_and_split_names_are_in_the_readme() -> None:
    codes = {
        kind.exit_code
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, errors.PackerError)
    }
    text = README[README.index("**Exit codes**") :].split("\n\n")[0]
    assert all(re.search(rf"\b{code} ", text) for code in codes | {0, 3, 130, 143})
    assert all(f"{extension}" in README for extension in EXTENSIONS)
    assert all(re.search(rf"\b{name}\b", README) for name in SPLIT_NAMES)


def test_each_failure_class_is_in_the_readme() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "packer").rglob("*.py"))
    classes = set(re.findall(r'SampleError\(\s*"([a-z-]+)"', sources)) | set(
        re.findall(r'(?<!_)refuse\("([a-z-]+)"', sources)
    )
    assert len(classes) > 6
    assert {name for name in classes - {"stopped"} if f"`{name}`" not in README} == set()


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Manifest)])
def test_each_manifest_entry_is_in_the_specification(field: str) -> None:
    assert f"`{field}`" in SPECIFICATION


def test_each_column_is_in_the_specification(tar_store: Path) -> None:
    for name in packer_reader.open(tar_store).columns:
        assert f"`{name}`" in SPECIFICATION


def test_the_error_tree_is_drawn_whole() -> None:
    drawn = set(re.findall(r"\b([A-Z]\w+Error)\b", errors.__doc__ or ""))
    assert drawn >= {name for name in errors.__all__ if name.endswith("Error")}


def test_the_changes_name_the_version() -> None:
    assert f"### {packer_reader.__version__}" in README
