"""A build of text that is killed at any moment goes on to the bytes of an undisturbed one; its memory is bounded."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults import tree
from tests.pipeline.test_deaths import Running, below, until_gone, workers_of
from tests.text.documents import words, write

SLOW = pytest.mark.slow
OPTIONS = ["--pack", "bestfit", "--seq-len", "256", "--workers", "2"]


def command(source: Path, out: Path) -> list[str]:
    together = ["--gather"] if out.suffix else []
    return [sys.executable, "-m", "packer", "build", str(source), str(out), *OPTIONS, *together, "--quiet"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 25 units of 1 MiB, half of them unpacked while scanning."""
    folder = tmp_path_factory.mktemp("deaths") / "src"
    text = words(3500, mean=400)
    write(folder / "a.jsonl", text * 2)
    write(folder / "b.jsonl.gz", text)
    return folder


@pytest.fixture(scope="module")
def references(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    folder, found = tmp_path_factory.mktemp("references"), {}
    for name in ("o", "o.lmdb"):
        subprocess.run(command(source, folder / name), check=True)
        found[name] = tree(folder / name)
    return found


@pytest.mark.parametrize("name", ["o.lmdb", pytest.param("o", marks=SLOW)])
@pytest.mark.parametrize("moment", [4, *(pytest.param(n, marks=SLOW) for n in range(0, 24, 2))])
def test_a_killed_build_goes_on_to_the_same_bytes(
    moment: int, name: str, source: Path, references: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    running = Running(source, tmp_path / name, command)
    running.wait_for(lambda: running.units_done() >= moment)
    family = below(running.process.pid)
    running.process.kill()
    running.end()
    assert until_gone(family) == []
    again = ["--overwrite"] if running.out.exists() else []
    subprocess.run([*command(source, running.out), *again], check=True)
    assert tree(running.out) == references[name]
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["o", pytest.param("o.lmdb", marks=SLOW)])
def test_killed_workers_cost_nothing_but_time(
    name: str, source: Path, references: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    running = Running(source, tmp_path / name, command)
    running.wait_for(lambda: len(workers_of(running.process.pid)) == 2 and running.units_done() >= 3)
    for pid in workers_of(running.process.pid):
        os.kill(pid, signal.SIGKILL)
    stderr = running.end()
    assert running.process.returncode == 0, stderr
    assert tree(running.out) == references[name]


def test_the_document_that_kills_workers_is_skipped(tmp_path: Path) -> None:
    """The worker does not know which of the documents that it tokenizes together does it, until it goes one by one."""
    documents = words(1500, mean=20)
    documents[700] += " poison"
    write(tmp_path / "d.jsonl", documents)
    (tmp_path / "poison.py").write_text(
        "import os\n"
        "from packer.tokens import tokenizer\n"
        "plain = tokenizer._Bytes.encode\n"
        "def encode(self, texts):\n"
        "    if any('poison' in text for text in texts):\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return plain(self, texts)\n"
        "tokenizer._Bytes.encode = encode\n"
        "from packer import Job, Recipe, build, tokenized\n"
        "if __name__ == '__main__':\n"
        "    report = build('d.jsonl', 'o', Recipe(text=tokenized()), Job(workers=2, runner='processes'))\n"
        "    print(report.written, report.errors)\n"
    )
    done = subprocess.run([sys.executable, "poison.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "1499 {'crashed': 1}\n", done.stderr
    line = json.loads((tmp_path / "o" / "errors.jsonl").read_text())
    assert line["name"] == "d.jsonl:701"


@pytest.mark.slow
def test_two_gigabytes_are_built_within_500_mb(tmp_path: Path) -> None:
    rng, line = random.Random(0), [json.dumps({"text": text}) for text in words(4000, mean=500)]
    with (tmp_path / "d.jsonl").open("w") as file:
        size = 0
        while size < 2 << 30:
            rng.shuffle(line)
            size += file.write("\n".join(line) + "\n")
    out = str(tmp_path / "o")
    arguments = ["build", str(tmp_path / "d.jsonl"), out, "--pack", "bestfit", "--seq-len", "2048", "--quiet"]
    running = subprocess.Popen([sys.executable, "-m", "packer", *arguments])
    most: dict[int, int] = {}
    while running.poll() is None:
        for pid in [running.pid, *below(running.pid)]:
            with suppress(OSError):
                found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
                most[pid] = int(found[1]) if found else most.get(pid, 0)
        time.sleep(0.1)
    assert running.returncode == 0
    assert len(most) >= 4  # with the server and two workers
    assert max(most.values()) < 500 * 1024
    print(f"largest process {max(most.values()) >> 10} MiB")  # noqa: T201 - wanted in the note
