"""What libraries read from the environment when they are loaded; what the user has set stays."""

import os


def set_library_defaults() -> None:
    """Sets the variables; takes effect in this process and its children when it runs before torch is loaded."""
    if "OMP_WAIT_POLICY" not in os.environ:
        # Looks for work before a thread of GNU's OpenMP sleeps, a third of its own: on a shared machine steps take half
        # the time, on a quiet one as long as before.  To sleep at once takes up to four times as long
        # (docs/performance.md).
        os.environ.setdefault("GOMP_SPINCOUNT", "100000")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages for large CPU tensors, much faster
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # a profile needs no log of its own
    # A rank that loses another one prints a C++ stack per connection; the watchdog says what matters in one line.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
