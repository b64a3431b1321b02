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
    """Create the directories of a run, if needed, and keep every other process out while the block runs.

    The system frees the lock however this process ends, so a killed run leaves nothing to clean up.
    Directories created here are removed again if the block fails before there is anything in them.
    Raises UserError, naming process, host and start, when another run has the directory; or when it can't be written.
    """
    try:
        samples = make_directory(run_dir / "samples")
        made = [*make_directory(run_dir / "checkpoints"), *samples]
        descriptor = _lock(run_dir)
    except OSError as error:
        remedy = "Choose another run_dir=, or get permission there."
        raise UserError(f"run_dir={run_dir} can't be written: {error.strerror}.", remedy) from error
    try:
        yield
    finally:
        with suppress(OSError):  # a disk that has become read-only must not hide why the block failed
            (run_dir / LOCK_FILE).unlink()  # while the lock is held: whoever has the file open sees that it is gone
        os.close(descriptor)
        with suppress(OSError):
            for directory in made:
                directory.rmdir()


def _lock(run_dir: Path) -> int:
    """The descriptor of an open file that holds the lock of `run_dir`."""
    path = run_dir / LOCK_FILE
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            if not try_lock(descriptor, without_locks=True):
                remedy = "Wait until it ends, stop it with Ctrl-C or `kill`, or choose another run_dir=."
                raise UserError(f"run_dir={run_dir} is in use by {_holder(os.read(descriptor, 4096))}.", remedy)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    break
        except (OSError, UserError):
            os.close(descriptor)
            raise
        os.close(descriptor)  # the run before removed its file between our opening and locking it
    about = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.strftime("%Y-%m-%d %H:%M:%S")}
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps(about).encode())
    return descriptor


def _holder(content: bytes) -> str:
    """The process that has written `content` into the lock file, in words."""
    try:
        about = json.loads(content)
        return f"process {about['pid']} on {about['host']}, started {about['started']}"
    except (ValueError, KeyError, TypeError):  # it has locked the file, and not written into it yet
        return "another process that is just starting"
