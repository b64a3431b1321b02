"""Files that are there whole or not at all: temporary name in the same directory, fsync, rename, fsync directory.

And reading of what may come from anywhere: plain files only, JSON of a bounded size.
"""

import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path
from typing import Any

TEMPORARY = ".partial-"  # what a killed process may leave behind; swept by `clean_partials`
REPLACED = ".replaced-"  # what was there, while the new one takes its name; put back by `clean_partials` if that did not happen


def fsync_path(path: Path) -> None:
    """Make a file's content, or a directory's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> list[Path]:
    """Make `path` and what is missing above it, durably; returns what was made, the deepest first."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for directory in reversed(missing):
        fsync_path(directory.parent)
    return missing


def existing_parent(path: Path) -> Path:
    """`path`, or the deepest directory above it that exists."""
    return next(directory for directory in (path.absolute(), *path.absolute().parents) if directory.exists())


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
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
def atomic_directory(path: Path) -> Iterator[Path]:
    """A temporary directory to fill; it becomes `path`, replacing what was there, when the block ends well."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for file in temporary.iterdir():
            fsync_path(file)
        fsync_path(temporary)
        replaced = path.with_name(f"{REPLACED}{path.name}")
        if path.exists():
            os.rename(path, replaced)
        os.rename(temporary, path)
        fsync_path(path.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_directory(path: Path) -> None:
    """Remove a directory so that no part of it is ever seen under its name."""
    doomed = path.with_name(f"{TEMPORARY}{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(path, doomed)
    shutil.rmtree(doomed)


def clean_partials(directory: Path) -> None:
    """Clean up after killed processes in `directory`: remove what is half-written, put back what was being replaced."""
    for leftover in sorted(directory.glob(f"{REPLACED}*")):
        original = leftover.with_name(leftover.name.removeprefix(REPLACED))
        if not original.exists():
            os.rename(leftover, original)
        else:
            _remove(leftover)
    for leftover in sorted(directory.glob(f"{TEMPORARY}*")):
        _remove(leftover)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def is_plain(path: Path) -> bool:
    """Whether there is a regular file at `path` itself: no link, pipe or device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def directory_bytes(directory: Path) -> int:
    """What all files below `directory` hold."""
    return sum(path.lstat().st_size for path in directory.rglob("*") if is_plain(path))


def read_json(path: Path, most_bytes: int) -> dict[str, Any]:
    """The JSON object in a file that may come from anywhere.

    Raises ValueError unless it is a plain file of at most `most_bytes` with one object that has no key twice and no
    NaN or infinity; OSError when it can't be read.
    """
    if not is_plain(path):
        raise ValueError("it is missing, or not a plain file")
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"it is larger than {most_bytes:,} bytes")
    return parse_json(content)


def parse_json(content: bytes | str) -> dict[str, Any]:
    """The one JSON object in `content`, as strict as `read_json`; raises ValueError."""
    try:
        value = json.loads(content, object_pairs_hook=_without_doubles, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("it has a key twice")
    return values


def _no_constant(name: str) -> float:
    raise ValueError(f"it has a number that is {name}")
