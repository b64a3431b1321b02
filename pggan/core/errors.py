"""Errors that a user can correct, and the exit codes of the program."""

import errno
from collections.abc import Iterable
from difflib import get_close_matches

EXIT_FAILED = 1  # an unexpected exception
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 75  # the same command resumes
EXIT_PEER_LOST = 76  # of a rank that ended because another one failed
# What the system says when it no longer takes what is written.
REFUSED_WRITES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


class UserError(Exception):
    """An error that the user can correct: what is wrong, and what to do.  It is shown without a traceback."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n  {self.remedy}"


class StepOutOfMemory(UserError):
    """Memory did not suffice for a step on this rank: other ranks, if there are any, are in the middle of it."""

    def __init__(self, problem: str, remedy: str, smaller: int | None = None) -> None:
        """Args: smaller: the micro-batch size to try next; None where there is no smaller one."""
        super().__init__(problem, remedy)
        self.smaller = smaller


def require(holds: bool, key: str, value: object, wanted: str) -> None:
    """Raise UserError unless `holds`: `key` is `value`, and has to be as `wanted` says."""
    if not holds:
        raise UserError(f"{key}={value} does not work.", f"It has to be {wanted}.")


def nearest_name(name: str, choices: Iterable[str]) -> str | None:
    """The choice that is most like a mistyped `name`; None if none is near."""
    return next(iter(get_close_matches(name, sorted(choices), n=1, cutoff=0.5)), None)


def nearest(name: str, choices: Iterable[str]) -> str:
    """A sentence that names the valid choice nearest to a mistyped `name`, or lists all of them."""
    known = sorted(choices)
    found = nearest_name(name, known)
    return f"Valid names: {', '.join(known)}." if found is None else f"Did you mean '{found}'?"
