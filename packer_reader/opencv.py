"""OpenCV where it is installed: a reader of JPEG stores needs it for speed only."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from torch.utils.data import get_worker_info

__all__ = ["opencv"]


@cache
def opencv() -> Any:
    """The module, or None. In a worker it keeps to the worker's thread."""
    try:
        cv2 = import_module("cv2")
    except ImportError:
        return None
    if get_worker_info() is not None:
        cv2.setNumThreads(1)
    return cv2
