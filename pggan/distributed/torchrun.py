"""torchrun for batch jobs, `python -m pggan.distributed.torchrun`: the same arguments, and the exit code of the ranks.

torchrun itself ends with code 1 and a traceback of its own even where its ranks were stopped by a signal, or have
reported a mistake; and SIGUSR1 kills it.
"""

import signal
import sys
from types import FrameType
from typing import NoReturn

from torch.distributed import run
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from pggan.core.errors import EXIT_FAILED, EXIT_INTERRUPTED
from pggan.core.signals import signal_handlers
from pggan.distributed.agent import FINAL_EXIT_CODES
from pggan.distributed.rendezvous import RENDEZVOUS_ERRORS


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """Make torchrun pass a signal on to its ranks, wait for them, and end."""
    raise SignalException(f"got signal {number}", signal.Signals(number))


def main() -> int:
    """Run torchrun with this process's arguments; returns the exit code."""
    try:
        with signal_handlers(stop):
            run.main()
    except SignalException:
        return EXIT_INTERRUPTED
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode  # that of the others may be of the SIGTERM that torchrun sent them
        if code in FINAL_EXIT_CODES:
            return code  # the ranks have said why
        print(error, file=sys.stderr)
        return EXIT_FAILED
    except RENDEZVOUS_ERRORS as error:
        print(f"Error: torchrun's rendezvous failed: {error!r}", file=sys.stderr)
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
