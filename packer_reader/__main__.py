"""`python -m packer_reader inspect|verify STORE`: for whoever has only the reader."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from packer_reader.errors import PackerError, StoreError


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1, 2 for a wrong option, or 4 for damage."""
    parser = argparse.ArgumentParser(prog="python -m packer_reader", description="Look at and check packer stores.")
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="print what a store holds")
    inspect.add_argument("store")
    inspect.add_argument("--sample", help="number or source name of one sample")
    inspect.add_argument("--split", help="which split, where the store holds several")
    verify = commands.add_parser("verify", help="compare a store with its manifest")
    verify.add_argument("store")
    verify.add_argument("--full", action="store_true", help="read and decode everything")
    for command in (inspect, verify):
        command.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        return _inspect(options) if options.command == "inspect" else _verify(options)
    except PackerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Whoever read the output has gone; nothing may be flushed to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"error: {error.strerror}: check the path, its permissions and the disk", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _inspect(options: argparse.Namespace) -> int:
    from packer_reader.summary import inspect_text

    print(inspect_text(options.store, options.split, options.sample, as_json=options.json), flush=True)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from packer_reader.check import SKIPPED, check_store
    from packer_reader.stores.open import store_folders

    findings = [
        (folder, f) for folder in store_folders(Path(options.store)) for f in check_store(folder, full=options.full)
    ]
    if options.json:
        lines = [finding.to_json(folder) for folder, finding in findings]
        print(json.dumps({"ok": not findings, "full": options.full, "findings": lines}))
    else:
        for folder, finding in findings:
            print(f"{folder}/{finding}")
        if not findings:
            print(f"{options.store}: no damage found" + ("" if options.full else f" ({SKIPPED})"))
    return StoreError.exit_code if findings else 0


if __name__ == "__main__":
    sys.exit(main())
