"""The CPU cores and the memory allocator of this machine.  Without torch."""

import ctypes
import os
import platform
import sys
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's mallopt: free memory kept at the top; blocks mapped one by one


def available_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_facts() -> dict[str, str]:
    """The model of the processor, its maker and its instruction sets, as far as the system names them."""
    info, found = Path("/proc/cpuinfo"), {"model name": platform.processor() or platform.machine()}
    found |= {"vendor_id": "", "flags": ""}
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
