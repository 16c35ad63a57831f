"""The help: quick, complete, with an example for each command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from packer.cli.main import COMMANDS, cli

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_an_example(command: str, run: Callable[..., Any]) -> None:
    text = run(command, "--help").stdout
    assert "Example:" in text
    assert f"packer {command}" in text
    assert run(command, "-h").stdout == text


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_has_help(command: str) -> None:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    for parameter in found.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from packer.cli.main import cli; cli(['--help'], standalone_mode=False); "
        "print([m for m in ('numpy', 'torch', 'cv2', 'lmdb', 'PIL', 'tqdm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_the_one_on_record(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    done = subprocess.run(
        [sys.executable, "-m", "packer", command, "--help"], capture_output=True, text=True, check=True
    )
    recorded = (Path(__file__).parent / "help" / f"{command}.txt").read_text()
    assert done.stdout == recorded, (
        f"if this is meant: COLUMNS=100 packer {command} --help > tests/cli/help/{command}.txt"
    )
