"""One process per run directory."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pggan.core.atomic_io import make_directory
from pggan.core.errors import UserError
from pggan.core.file_lock import try_lock

LOCK_FILE = ".lock"


@contextmanager
def lock_run_dir(run_dir: Path) -> Iterator[None]:
    """Make `run_dir` if need be, and keep every other process out of it for as long as the block runs.

    The system frees the lock however this process ends, so a killed run leaves nothing to clean up.
    A directory that was made here goes away again if the block fails before there is anything in it.
    Raises UserError, naming process, host and start, when another run has the directory; or when it can't be written.
    """
    try:
        made = make_directory(run_dir)
        descriptor = _lock(run_dir)
    except OSError as error:
        raise UserError(
            f"run_dir={run_dir} can't be written: {error.strerror}.",
            "Choose another run_dir=, or get permission there.",
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):  # a disk that has become read-only must not hide why the block failed
            (run_dir / LOCK_FILE).unlink()  # while the lock is held: whoever opened it before will see that it is gone
        os.close(descriptor)
        with suppress(OSError):
            for directory in made:
                directory.rmdir()


def _lock(run_dir: Path) -> int:
    """An open file that holds the lock of `run_dir`."""
    path = run_dir / LOCK_FILE
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            if not try_lock(descriptor, without_locks=True):
                holder = os.read(descriptor, 4096).decode(errors="replace")
                raise UserError(
                    f"run_dir={run_dir} is in use by {_description(holder)}.",
                    "Wait until it ends, stop it with Ctrl-C or `kill`, or choose another run_dir=.",
                )
        except (OSError, UserError):
            os.close(descriptor)
            raise
        if _is_still_there(descriptor, path):
            break
        os.close(descriptor)  # the run before ended between our opening and locking its file
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": started}).encode())
    return descriptor


def _is_still_there(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _description(holder: str) -> str:
    try:
        facts = json.loads(holder)
        return f"process {facts['pid']} on {facts['host']}, started {facts['started']}"
    except (ValueError, KeyError, TypeError):  # it has locked the file, and not yet said who it is
        return "another process that is just starting"
