"""The CPU cores of this machine.  Without torch."""

import os


def available_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_rank(ranks: int, *, elastic: bool) -> int:
    """CPU threads for each of the `ranks` on this machine; 1 if `elastic`: several would add up in another order."""
    return 1 if elastic else max(1, available_cores() // ranks)
