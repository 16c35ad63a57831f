"""What LMDB leaves undefined in a file, made zero, so that equal stores have equal bytes.

LMDB writes dirty pages as they lie in memory: the gap between a page's pointers and its nodes, an unused header word,
the rest behind a value in a single overflow page, and whole free pages hold whatever was there before. That depends
on the history of the process, so a build that was interrupted would differ from one that was not.

The walk follows the newest meta page through both trees (engine 0.9, 64-bit, native byte order; `mdb.c`, sections
"page headers" and "nodes"), changes nothing that LMDB reads, and zeroes every page that neither tree reaches.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["zero_undefined"]

_HEADER = 16
_PAD, _FLAGS = 8, 10
_BRANCH, _LEAF = 0x01, 0x02
_BIG = 0x01
_META_SIZE = 136 + 16
_TREES = (40, 88)
"""Places of the free tree's and the main tree's description in a meta page; its root is the last word."""
_NO_ROOT = 2**64 - 1


@dataclass
class _Walk:
    data: mmap.mmap
    page: int
    """Bytes of a page."""
    reached: np.ndarray[tuple[int], np.dtype[np.bool_]]
    todo: list[int] = field(default_factory=list)


def zero_undefined(path: Path) -> None:
    """Zero what LMDB never reads in a closed data file; doing it again changes nothing."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        newest = _newest_meta(data)
        (size,) = struct.unpack_from("I", data, newest + _TREES[0])
        walk = _Walk(data, size, np.zeros(len(data) // size, np.bool_))
        walk.reached[:2] = True
        for tree in _TREES:
            (root,) = struct.unpack_from("Q", data, newest + tree + 40)
            if root != _NO_ROOT:
                walk.todo.append(root)
        while walk.todo:
            _tree_page(walk, walk.todo.pop())
        for number in np.flatnonzero(~walk.reached).tolist():
            data[number * size : (number + 1) * size] = bytes(size)
        data.flush()


def _newest_meta(data: mmap.mmap) -> int:
    """Offset of the meta page with the higher transaction number."""
    (size,) = struct.unpack_from("I", data, _TREES[0])
    first, second = (struct.unpack_from("Q", data, place + _META_SIZE - 8)[0] for place in (0, size))
    return 0 if first > second else int(size)


def _tree_page(walk: _Walk, number: int) -> None:
    """Clean one branch or leaf page, and note its children and overflow pages."""
    start, data = number * walk.page, walk.data
    flags, lower, upper = struct.unpack_from("HHH", data, start + _FLAGS)
    walk.reached[number] = True
    struct.pack_into("H", data, start + _PAD, 0)
    data[start + lower : start + upper] = bytes(upper - lower)
    places = np.frombuffer(data[start + _HEADER : start + lower], np.uint16)
    for place in places.tolist():
        low, high, node_flags, key = struct.unpack_from("HHHH", data, start + place)
        if flags & _BRANCH:
            walk.todo.append(low | high << 16 | node_flags << 32)
        elif flags & _LEAF and node_flags & _BIG:
            (first,) = struct.unpack_from("Q", data, start + place + 8 + key)
            _overflow(walk, first, low | high << 16)


def _overflow(walk: _Walk, first: int, size: int) -> None:
    """Clean the pages of one large value."""
    pages = -(-(_HEADER + size) // walk.page)
    walk.reached[first : first + pages] = True
    start = first * walk.page
    struct.pack_into("H", walk.data, start + _PAD, 0)
    end, stop = start + _HEADER + size, start + pages * walk.page
    walk.data[end:stop] = bytes(stop - end)
