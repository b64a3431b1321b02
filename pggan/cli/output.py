"""Standard output and error that outlive whoever reads them."""

import errno
import io
import os
import sys
from typing import IO, Any

NOBODY_READS = (errno.EPIPE, errno.EIO)  # a pipe whose reader has ended, a terminal that is gone


class LastingOutput(io.FileIO):
    """An open file descriptor; once nobody reads what is written to it, that is dropped and nothing fails."""

    def write(self, data: Any, /) -> int:
        """Write bytes, or drop them where nobody reads; returns their number."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in NOBODY_READS:
                raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        return super().write(data)


def outlive_readers() -> None:
    """Let this process go on when `| head` has seen enough or its terminal is gone: its files are what counts."""
    sys.stdout, sys.stderr = lasting(sys.stdout), lasting(sys.stderr)


def lasting(stream: IO[str]) -> IO[str]:
    """`stream` on a LastingOutput; one that is closed or is no file stays as it is."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    raw = LastingOutput(stream.fileno(), "wb", closefd=False)
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, stream.encoding, stream.errors, line_buffering=stream.line_buffering)
