"""Tar framing: ustar members with fixed headers (specification, section 5).

The standard library's `tarfile` reads every shard, and writes the same header bytes (a test holds the two together); a
header is made here from one template, which takes 0.9 us instead of 16.
"""

from __future__ import annotations

from packer_reader.format.names import key_text

__all__ = ["BLOCK", "END", "MAX_MEMBER", "member_header", "member_name", "member_size"]

BLOCK = 512
END = bytes(2 * BLOCK)
"""The end of an archive: two blocks of zeros, and no padding to a record of 20."""
MAX_MEMBER = 8**11 - 1
"""Bytes of a member: eleven octal digits."""

_BEFORE_SIZE = b"0000644\0" + b"0000000\0" * 2
_MTIME = b"00000000000\0"
_AFTER_SUM = b"0" + bytes(100) + b"ustar\x0000" + bytes(64 + 16 + 167)
_BASE_SUM = sum(_BEFORE_SIZE) + sum(_MTIME) + sum(_AFTER_SUM) + 8 * ord(" ")
"""Checksum of a header without name and size, its own field counted as spaces."""


def member_name(key: int, suffix: str) -> str:
    """`KEY.SUFFIX`."""
    return f"{key_text(key)}.{suffix}"


def member_header(name: str, size: int) -> bytes:
    """The 512 bytes before a member's data: mode 644, owner 0, time 0, a regular file.

    Args:
        name: at most 99 ASCII characters.
        size: bytes of the member, at most `MAX_MEMBER`.
    """
    raw = name.encode("ascii")
    length = b"%011o\0" % size
    total = _BASE_SUM + sum(raw) + sum(length)
    return raw.ljust(100, b"\0") + _BEFORE_SIZE + length + _MTIME + b"%06o\0 " % total + _AFTER_SUM


def member_size(size: int) -> int:
    """Bytes that a member of `size` bytes takes in the archive, header and padding included."""
    return BLOCK + size + -size % BLOCK
