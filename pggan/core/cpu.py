"""The CPU cores and the memory allocator of this machine.  Without torch."""

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's mallopt: free memory kept at the top; blocks mapped one by one


def available_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_rank(ranks: int, *, elastic: bool) -> int:
    """CPU threads for each of the `ranks` on this machine; 1 if `elastic`: several would add up in another order."""
    return 1 if elastic else max(1, available_cores() // ranks)


def keep_freed_memory() -> None:
    """Let the C library (glibc) keep freed memory: blocks of 35 MB from the system take 14 ms, page by page."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
