"""What this job may use of this machine."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

__all__ = ["usable_cpus", "usable_memory"]


def usable_cpus(environment: dict[str, str] | None = None, cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """CPUs for workers: the least of affinity, cgroup quota and SLURM_CPUS_PER_TASK, at least 1."""
    environment = dict(os.environ) if environment is None else environment
    limits = [len(os.sched_getaffinity(0))]
    quota = _cgroup_quota(cgroup)
    if quota is not None:
        limits.append(max(1, math.ceil(quota)))
    given = environment.get("SLURM_CPUS_PER_TASK", "")
    if re.fullmatch("[0-9]{1,6}", given):
        limits.append(int(given))
    return max(1, min(limits))


def _cgroup_quota(cgroup: Path) -> float | None:
    """CPUs by quota, of cgroup version 2 or 1; None without a limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        share = int((cgroup / "cpu/cpu.cfs_quota_us").read_text())
        return share / int((cgroup / "cpu/cpu.cfs_period_us").read_text()) if share > 0 else None
    except (OSError, ValueError):
        return None


def usable_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that this job may have: the machine's, or the limit of its cgroup (version 2 or 1)."""
    limits = []
    found = re.search(r"^MemTotal:\s+([0-9]+) kB", _text(meminfo), re.MULTILINE)
    if found:
        limits.append(int(found.group(1)) << 10)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _text(cgroup / name).strip()
        if text.isdigit():
            limits.append(int(text))
    return min(limits, default=1 << 62)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
