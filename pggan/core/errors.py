"""The one kind of error that a user can cause, and how the program ends."""

from collections.abc import Iterable
from difflib import get_close_matches

EXIT_FAILED = 1  # anything that is nobody's wish
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 75  # the same command goes on
EXIT_LEFT = 76  # of one of several processes: it is another one that failed


class UserError(Exception):
    """Something the user can put right: what is wrong, and what to do about it.  Shown without a traceback."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n  {self.remedy}"


def nearest(name: str, choices: Iterable[str]) -> str:
    """A sentence that points from a mistyped `name` to the valid one meant, or lists all valid ones."""
    known = sorted(choices)
    matches = get_close_matches(name, known, n=1, cutoff=0.5)
    if matches:
        return f"Did you mean '{matches[0]}'?"
    return f"Valid names: {', '.join(known)}."
