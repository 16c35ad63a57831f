"""The command line: parses, draws progress, prints results. Commands load what they need when they run."""

from packer.cli.main import main

__all__ = ["main"]
