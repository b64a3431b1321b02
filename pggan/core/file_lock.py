"""Advisory file locks; the system frees them however the process that holds one ends."""

import fcntl
from errno import ENOLCK, EOPNOTSUPP


def try_lock(descriptor: int, *, without_locks: bool) -> bool:
    """Take the exclusive lock of an open file; returns False when another process has it.

    Some network file systems have no locks: there the answer is `without_locks`.  Raises OSError for anything else.
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
