"""The on-disk contract: bytes in, bytes out. Opens no file, imports neither torch nor lmdb.

README.md in this folder is the specification; each module is one of its sections.
"""
