"""CRC-32 of stored fields (specification, section 4): zlib's values from zlib-ng.

zlib takes 10 us for 20 kB that are not in the CPU's cache yet; zlib-ng takes 3.7, as long as they take to arrive.
"""

from __future__ import annotations

from zlib_ng.zlib_ng import crc32

__all__ = ["crc32"]
