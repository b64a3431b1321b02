"""Errors that a user can correct, and the exit codes of the command `pggan`."""

import errno
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 75  # a signal stopped training; the same command resumes training
EXIT_PEER_LOST = 76  # this rank ended because another rank failed
REFUSED_WRITES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
# The user can correct the cause of an OSError that has one of these error numbers.
REFUSED = (*REFUSED_WRITES, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)


class UserError(Exception):
    """An error that the user can correct; the command line prints the error without a traceback."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n  {self.remedy}"


class StepFailed(UserError):
    """A training step failed on one rank; other ranks may still compute this step."""

    def __init__(self, problem: str, remedy: str, compute: Mapping[str, Any] | None = None) -> None:
        """`compute`: settings compute.* that may avoid the failure, such as {'kernels': 'reference'}, or None."""
        super().__init__(problem, remedy)
        self.compute = dict(compute or {})


def require(holds: bool, key: str, value: object, wanted: str) -> None:
    """If `holds` is false, raise a UserError: `key`=`value` does not work, the value has to be `wanted`."""
    if not holds:
        raise UserError(f"{key}={value} does not work.", f"It has to be {wanted}.")


def nearest_name(name: str, choices: Iterable[str]) -> str | None:
    """The choice that is most similar to a mistyped `name`; None if no choice is similar."""
    return next(iter(get_close_matches(name, sorted(choices), n=1, cutoff=0.5)), None)


def nearest_path(path: str | Path, fits: Callable[[Path], bool] = Path.exists) -> str:
    """Suggest a similar path in the folder of `path` for which `fits` is true; "" if there is none or `path` exists."""
    path, folder = Path(path), Path(path).parent
    names = [one.name for one in folder.iterdir() if fits(one)] if folder.is_dir() and not path.exists() else []
    found = nearest_name(path.name, names)
    return "" if found is None else f"Did you mean '{folder / found}'?"


def nearest(name: str, choices: Iterable[str]) -> str:
    """Suggest the choice that is most similar to a mistyped `name`, or list all choices if none is similar."""
    known = sorted(choices)
    found = nearest_name(name, known)
    return f"Valid names: {', '.join(known)}." if found is None else f"Did you mean '{found}'?"
