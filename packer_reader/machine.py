"""What this job may use of this machine."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["free_memory", "own_cgroups", "read_ahead", "seeks_are_slow", "usable_cpus", "usable_memory"]

_CGROUP_MEMORY = (
    ("memory.max", "memory.current", "file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_cache"),
)
"""Files of a cgroup's limit and use, and the line of memory.stat that says how much of it holds files."""


def usable_cpus(environment: dict[str, str] | None = None, cgroups: Sequence[Path] | None = None) -> int:
    """CPUs for workers: the least of affinity, cgroup quota and SLURM_CPUS_PER_TASK, at least 1."""
    environment = dict(os.environ) if environment is None else environment
    limits = [len(os.sched_getaffinity(0))]
    quotas = [_cgroup_quota(cgroup) for cgroup in (own_cgroups() if cgroups is None else cgroups)]
    limits += [max(1, math.ceil(quota)) for quota in quotas if quota is not None]
    given = environment.get("SLURM_CPUS_PER_TASK", "")
    if re.fullmatch("[0-9]{1,6}", given):
        limits.append(int(given))
    return max(1, min(limits))


def own_cgroups(own: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> list[Path]:
    """Folders of the cgroups that this process is in, version 2 or 1, and of all above: a limit may be anywhere."""
    found = [root]
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            folder = root / controller / path.strip("/")
            found += [folder, *(parent for parent in folder.parents if root in parent.parents)]
    return list(dict.fromkeys(found))


def _cgroup_quota(cgroup: Path) -> float | None:
    """CPUs by quota, of cgroup version 2 or 1; None without a limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    for place in (cgroup, cgroup / "cpu"):
        try:
            share = int((place / "cpu.cfs_quota_us").read_text())
            return share / int((place / "cpu.cfs_period_us").read_text()) if share > 0 else None
        except (OSError, ValueError):
            continue
    return None


def usable_memory(meminfo: Path = Path("/proc/meminfo"), cgroups: Sequence[Path] | None = None) -> int:
    """Bytes of memory that this job may have: the machine's, or the least limit of its cgroups (version 2 or 1)."""
    limits = []
    found = re.search(r"^MemTotal:\s+([0-9]+) kB", _text(meminfo), re.MULTILINE)
    if found:
        limits.append(int(found.group(1)) << 10)
    for cgroup in own_cgroups() if cgroups is None else cgroups:
        for name in ("memory.max", "memory.limit_in_bytes", "memory/memory.limit_in_bytes"):
            text = _text(cgroup / name).strip()
            if text.isdigit():
                limits.append(int(text))
    return min(limits, default=1 << 62)


def free_memory(meminfo: Path = Path("/proc/meminfo"), cgroups: Sequence[Path] | None = None) -> int:
    """Bytes of memory that this job may still take; what only holds files counts as free."""
    found = re.search(r"^MemAvailable:\s+([0-9]+) kB", _text(meminfo), re.MULTILINE)
    free = [int(found.group(1)) << 10] if found else []
    for cgroup in own_cgroups() if cgroups is None else cgroups:
        for limit, used, files in _CGROUP_MEMORY:
            texts = _text(cgroup / limit).strip(), _text(cgroup / used).strip()
            if all(text.isdigit() for text in texts):
                held = re.search(rf"^{files} ([0-9]+)$", _text((cgroup / limit).parent / "memory.stat"), re.MULTILINE)
                free.append(int(texts[0]) - int(texts[1]) + (int(held.group(1)) if held else 0))
    return max(0, min(free, default=1 << 62))


def seeks_are_slow(
    path: Path, mounts: Path = Path("/proc/self/mountinfo"), devices: Path = Path("/sys/dev/block")
) -> bool:
    """Whether a file lies where reading here and there is much slower than reading on: a spinning or a network disk.

    What the system does not tell counts as quick. Virtual disks often say that they spin, which some do.
    """
    device = os.stat(path).st_dev  # noqa: PTH116 - names may be no valid text
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in _text(mounts).splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2:3] == [number] and _NETWORK.match(rest):
            return True
    return _queue(device, "rotational", devices) == "1"


def read_ahead(path: Path, devices: Path = Path("/sys/dev/block")) -> int | None:
    """Bytes that the system reads ahead at most on the disk of a file; None where it does not tell."""
    text = _queue(os.stat(path).st_dev, "read_ahead_kb", devices)  # noqa: PTH116 - names may be no valid text
    return int(text) << 10 if text.isdigit() else None


def _queue(device: int, name: str, devices: Path) -> str:
    """A setting of a disk's queue, which a partition has from its disk; empty where the system does not tell."""
    block = devices / f"{os.major(device)}:{os.minor(device)}"
    return next(filter(None, (_text(place / "queue" / name).strip() for place in (block, block / ".."))), "")


_NETWORK = re.compile(
    r"(nfs|cifs|smb|ceph|lustre|gpfs|beegfs|glusterfs|9p|afs|ocfs|fuse\.(?!overlay|ext|ntfs|snapfuse))"
)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
