"""Ways in which a store gets hurt. Each is guaranteed to change a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def flip_byte(path: Path, place: int) -> None:
    """Invert one byte; a negative place counts from the end."""
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)


def truncate(path: Path, keep: int) -> None:
    """Cut a file, which must be longer."""
    data = path.read_bytes()
    assert keep < len(data)
    path.write_bytes(data[:keep])


def edit_manifest(store: Path, **changes: Any) -> None:
    """Change entries of a manifest and leave its hash as it is."""
    path = store / "manifest.json"
    document = json.loads(path.read_text())
    assert any(document[name] != value for name, value in changes.items())
    path.write_text(json.dumps(document | changes))


def tree(root: Path) -> dict[str, bytes]:
    """Every file of a folder by relative name."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in _files(root)}


def _files(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.rglob("*")) if path.is_file())
