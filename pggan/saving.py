"""Checkpoints written in the background, while training goes on."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import TracebackType

from pggan.checkpoint import Snapshot, prune, write_checkpoint
from pggan.errors import UserError
from pggan.files import existing_parent


class Saver:
    """Writes one snapshot at a time, in the order given.

    What goes wrong in the background is raised by the next `poll`, `save` or `wait`: UserError when the disk refuses,
    NotFinite when the snapshot is not worth keeping.
    """

    def __init__(self, run_dir: Path, keep: int) -> None:
        self.run_dir = run_dir
        self.keep = keep
        self._thread: Thread | None = None
        self._error: Exception | None = None

    def __enter__(self) -> "Saver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish what has begun, unless Ctrl-C says at once; what goes wrong then matters less than `error`."""
        if kind is None:
            self.wait()
        elif issubclass(kind, Exception):
            with suppress(Exception):
                self.wait()

    def save(self, snapshot: Snapshot) -> None:
        """Start writing `snapshot`; waits for the one before, so that at most two copies of the state are in memory."""
        self.wait()
        # A daemon: a second Ctrl-C leaves at once, and what is half-written then is swept at the next start.
        self._thread = Thread(target=self._write, args=(snapshot,), name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when everything given to `save` is durable."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.poll()

    def poll(self) -> None:
        """Raise what went wrong in the background, once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, snapshot: Snapshot) -> None:
        try:
            write_checkpoint(self.run_dir, snapshot)
            prune(self.run_dir, snapshot.images, self.keep)
        except OSError as error:
            self._error = refused_by_disk(self.run_dir, error, snapshot.bytes)
            self._error.__cause__ = error
        except Exception as error:  # any other error belongs to the main thread just as well
            self._error = error


def refused_by_disk(run_dir: Path, error: OSError, needed: int) -> UserError:
    """What to say when the system refuses to write into `run_dir`, where a checkpoint needs `needed` bytes."""
    missing = needed - shutil.disk_usage(existing_parent(run_dir)).free
    inodes = os.statvfs(existing_parent(run_dir))
    full = " There is no room for more files." * (inodes.f_files > 0 and inodes.f_favail == 0)
    short = f" A checkpoint needs {needed / 1e6:,.1f} MB: {missing / 1e6:,.1f} MB more than is free." * (missing > 0)
    return UserError(
        f"{run_dir} can't be written any more: {error.strerror or error}.{short}{full}",
        "Training has stopped; the last checkpoint is whole. Make room there, or get permission, and give the same "
        "command again.",
    )
