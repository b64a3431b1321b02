"""Errors that a user can correct, and the exit codes of the program."""

import errno
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

EXIT_FAILED = 1  # an unexpected exception ended the program
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 75  # a signal stopped the program; the same command resumes training
EXIT_PEER_LOST = 76  # this rank ended because another rank failed
# Error numbers of failed writes: disk full, quota exceeded, read-only file system, file too large.
REFUSED_WRITES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
# Error numbers that a user can correct: failed writes, no permission, a name too long, a circle of links.
REFUSED = (*REFUSED_WRITES, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)


class UserError(Exception):
    """An error that the user can correct: what is wrong, and what to do.  The program shows it without a traceback."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n  {self.remedy}"


class StepFailed(UserError):
    """A training step or its CUDA graph failed on one rank; other ranks may be in the middle of the same step."""

    def __init__(self, problem: str, remedy: str, compute: Mapping[str, Any] | None = None) -> None:
        """Args: compute: new values of `compute.` keys for the next try, such as {'kernels': 'reference'}."""
        super().__init__(problem, remedy)
        self.compute = dict(compute or {})


def require(holds: bool, key: str, value: object, wanted: str) -> None:
    """Raise UserError if `holds` is false.  The message names the wrong key=value and the valid values (`wanted`)."""
    if not holds:
        raise UserError(f"{key}={value} does not work.", f"It has to be {wanted}.")


def nearest_name(name: str, choices: Iterable[str]) -> str | None:
    """The choice that is most similar to a mistyped `name`; None if no choice is similar."""
    return next(iter(get_close_matches(name, sorted(choices), n=1, cutoff=0.5)), None)


def nearest_path(path: str | Path) -> str:
    """A sentence for the user: the path that is most similar to `path`; "" if `path` exists, or if none is similar."""
    path, folder = Path(path), Path(path).parent
    names = [one.name for one in folder.iterdir()] if folder.is_dir() and not path.exists() else []
    found = nearest_name(path.name, names)
    return "" if found is None else f"Did you mean '{folder / found}'?"


def nearest(name: str, choices: Iterable[str]) -> str:
    """A sentence for the user: the valid choice nearest to a mistyped `name`, or else the list of all choices."""
    known = sorted(choices)
    found = nearest_name(name, known)
    return f"Valid names: {', '.join(known)}." if found is None else f"Did you mean '{found}'?"
