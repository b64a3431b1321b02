"""Files that are there whole or not at all: temporary name in the same directory, fsync, rename, fsync directory."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path

TEMPORARY = ".partial-"  # what a killed process may leave behind; swept by `sweep`


def fsync_path(path: Path) -> None:
    """Make a file's content, or a directory's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it becomes `path` when the block ends without an exception."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        yield temporary
        fsync_path(temporary)
        os.replace(temporary, path)
        fsync_path(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A temporary directory to fill; it becomes `path`, replacing what was there, when the block ends well."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.iterdir():
            fsync_path(file)
        fsync_path(temporary)
        shutil.rmtree(path, ignore_errors=True)
        os.rename(temporary, path)
        fsync_path(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sweep(directory: Path) -> None:
    """Remove what killed processes left half-written in `directory`."""
    for leftover in directory.glob(f"{TEMPORARY}*"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
