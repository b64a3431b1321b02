"""Atomic writes (after a kill or a power failure, no file is half-written), checksums, JSON, disk space, locks."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path
from typing import Any

from pggan.core.errors import UserError

TEMPORARY = ".partial-"  # files with this prefix are half-written or half-removed


def fsync_path(path: Path) -> None:
    """Flush a file's content, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> list[Path]:
    """Create `path` and its missing parents, and flush them to the disk; returns the new directories, deepest first."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for directory in reversed(missing):
        fsync_path(directory.parent)
    return missing


def existing_parent(path: Path) -> Path:
    """`path` if this path exists, else the nearest parent directory that exists."""
    return next(directory for directory in (path.absolute(), *path.absolute().parents) if directory.exists())


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path; if the `with` block raises no exception, the temporary file replaces `path`."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        yield temporary
        fsync_path(temporary)
        os.replace(temporary, path)
        fsync_path(path.parent)
    except OSError as error:
        if error.errno and error.filename is None:  # a write to a full disk raises an error without a file name
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory; if the `with` block raises no exception, this directory replaces `path`."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for file in (*temporary.iterdir(), temporary):
            fsync_path(file)
        if path.exists():  # the new files are safely on the disk before the old directory is removed
            remove_directory(path)
        os.rename(temporary, path)
        fsync_path(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_directory(path: Path) -> None:
    """Rename, then delete a directory, so that a kill never leaves half of the directory at `path`."""
    doomed = path.with_name(f"{TEMPORARY}old-{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)  # `clean_partials` deletes the rest later


def clean_partials(directory: Path) -> None:
    """Remove files and directories in `directory` that killed processes left half-written or half-removed."""
    for leftover in directory.glob(f"{TEMPORARY}*"):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink()


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def parse_json(content: bytes | str) -> dict[str, Any]:
    """Parse the JSON object `content`; raises ValueError if `content` is no JSON object."""
    value = json.loads(content)
    if not isinstance(value, dict):
        raise ValueError("the content is not a JSON object")
    return value


def require_free_space(path: Path, needed: int, remedy: str) -> None:
    """Raise UserError if the disk of `path` has less than `needed` free bytes."""
    if (missing := needed - shutil.disk_usage(existing_parent(path)).free) > 0:
        problem = f"{path} needs {needed / 1e6:,.1f} MB of disk space, {missing / 1e6:,.1f} MB more than are free."
        raise UserError(problem, remedy)


def try_lock(descriptor: int) -> bool:
    """Lock a file until it is closed or this process ends; returns False if another process holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # on a network file system without locks, go on without a lock
        return True
    return True
