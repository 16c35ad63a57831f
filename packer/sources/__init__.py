"""Where raw samples come from: each source lists cheap refs once and reads one ref at a time."""

PYTHON = "python:"
"""What `--from` begins with for a data set in Python, which has no path."""

__all__ = ["PYTHON"]
