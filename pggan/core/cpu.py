"""The CPU cores and the memory allocator of this machine.  Without torch."""

import ctypes
import os
import platform
import sys
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's mallopt: free memory kept at the top; blocks mapped one by one
MEMORY_FACTS = Path("/proc/meminfo")
CONTROL_GROUPS, OWN_CONTROL_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def available_cores() -> int:
    """CPU cores that this process may use, or as many as its control groups give it the time of."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in control_groups():
        quota, _, period = _content(group / "cpu.max").partition(" ")
        if quota.isdecimal() and period.isdecimal():
            cores = min(cores, max(-(-int(quota) // int(period)), 1))
    return cores


def available_memory() -> int | None:
    """Bytes that this process may still take, by the machine and its control groups; None where Linux does not say."""
    lines = _content(MEMORY_FACTS).splitlines()
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for group in control_groups():
        limit, used = _content(group / "memory.max"), _content(group / "memory.current")
        if limit.isdecimal() and used.isdecimal():
            # Files that were read count as used, and make room.
            statistics = dict(line.split() for line in _content(group / "memory.stat").splitlines())
            free.append(max(int(limit) - int(used) + int(statistics.get("inactive_file", 0)), 0))
    return min(free, default=None)


def control_groups() -> list[Path]:
    """The control groups (cgroup v2) of this process, the innermost first: those of containers and of job schedulers.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html
    """
    name = next((line[3:] for line in _content(OWN_CONTROL_GROUP).splitlines() if line.startswith("0::")), None)
    if name is None:
        return []
    innermost = CONTROL_GROUPS / name.lstrip("/")
    return [group for group in (innermost, *innermost.parents) if group.is_relative_to(CONTROL_GROUPS)]


def _content(file: Path) -> str:
    """The text of a file of the system, without the newline at its end; none where it is not there."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def processor_facts() -> dict[str, str]:
    """The model and family of the processor, its maker and its instruction sets, as far as the system names them."""
    info, found = Path("/proc/cpuinfo"), {"model name": platform.processor() or platform.machine()}
    found |= {"vendor_id": "", "cpu family": "", "flags": ""}
    for line in info.read_text().splitlines() if info.is_file() else []:
        name, _, value = line.partition(":")
        if name.strip() in found:
            found[name.strip()] = value.strip()
        if not line:
            break  # the others are of the same kind
    return found


def threads_per_rank(ranks: int, *, elastic: bool) -> int:
    """CPU threads for each of the `ranks` on this machine; 1 if `elastic`: several would add up in another order."""
    return 1 if elastic else max(1, available_cores() // ranks)


def keep_freed_memory() -> None:
    """Let the C library (glibc) keep freed memory: blocks of 35 MB from the system take 14 ms, page by page."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)  # never
