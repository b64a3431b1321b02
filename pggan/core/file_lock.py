"""Advisory locks on files; the system frees them however the process that holds one ends."""

import fcntl
from errno import ENOLCK, EOPNOTSUPP


def try_lock(descriptor: int, *, without_locks: bool) -> bool:
    """Whether this process has the exclusive lock of an open file; False when another one has it.

    Some network file systems know no locks: there the answer is `without_locks`, True to go ahead all the same.
    Raises OSError for anything else.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (ENOLCK, EOPNOTSUPP):
            raise
        return without_locks
    return True
