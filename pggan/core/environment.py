"""Environment variables: what libraries read when they are loaded, and what all processes of a command know of it."""

import os

COMMAND_VARIABLE = "PGGAN_COMMAND"  # the command line, as the program and all of its ranks have it
STARTED_VARIABLE = "PGGAN_STARTED"  # when it was given, in seconds since 1970


def set_library_defaults() -> None:
    """Set what the user has not; takes effect in this process and its children when it runs before torch is loaded."""
    if "OMP_WAIT_POLICY" not in os.environ:
        # Looks for work before a thread of GNU's OpenMP sleeps, a third of its own: on a shared machine steps take half
        # the time, on a quiet one as long as before.  To sleep at once takes up to four times as long
        # (docs/performance.md).
        os.environ.setdefault("GOMP_SPINCOUNT", "100000")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages for large CPU tensors, much faster
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # a profile needs no log of its own
    # A rank that loses another one prints a C++ stack per connection; the watchdog says what matters in one line.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
