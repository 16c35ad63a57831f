"""Sizes in words: "256MB" to bytes and back."""

from __future__ import annotations

import re

from packer_reader.errors import UsageError

__all__ = ["format_bytes", "parse_bytes"]

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int, what: str = "size") -> int:
    """Bytes of a size such as `256MB`, `1.5 GiB` or `1000`; whole bytes only.

    Raises:
        UsageError: it cannot be read.

    Example:
        >>> parse_bytes("64MB"), parse_bytes("1KiB")
        (64000000, 1024)
    """
    found = _SIZE.fullmatch(str(text))
    unit = _UNITS.get((found.group(2) or "B").upper()) if found else None
    if found is None or unit is None:
        raise UsageError(f"{what} is {text!r}, it must be a number with B, KB, MB, GB, KiB, MiB or GiB, such as 256MB")
    value = float(found.group(1)) * unit if "." in found.group(1) else int(found.group(1)) * unit
    if value != int(value):
        raise UsageError(f"{what} is {text!r}, which is no whole number of bytes")
    return int(value)


def format_bytes(size: float) -> str:
    """A size for people, such as `64.0 MB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
