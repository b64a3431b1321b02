"""Space on a disk, looked up before it is needed."""

import os
import shutil
from pathlib import Path

from pggan.core.atomic_io import existing_parent
from pggan.core.errors import UserError


def free_bytes(path: Path) -> int:
    """The bytes that are free on the disk of `path`, which need not exist yet."""
    return shutil.disk_usage(existing_parent(path)).free


def free_files(path: Path) -> int | None:
    """The files (inodes) that the disk of `path` still has room for; None where the file system does not count them."""
    facts = os.statvfs(existing_parent(path))
    return facts.f_favail if facts.f_files else None


def require_free_space(path: Path, needed: int, remedy: str) -> int:
    """The bytes that are free on the disk of `path`; raises a UserError with the megabytes missing below `needed`."""
    free = free_bytes(path)
    if needed > free:
        problem = f"{path} needs {needed / 1e6:,.1f} MB more; the disk is {(needed - free) / 1e6:,.1f} MB short."
        raise UserError(problem, remedy)
    return free
