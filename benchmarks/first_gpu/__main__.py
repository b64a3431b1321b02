"""What the first GPU has to show, in ten minutes: `make gpu`, or `python -m benchmarks.first_gpu`.

Thirteen parts, each of several items: rates of the device, gradients compared with float64, captured steps compared
with eager ones, a resumed run, memory that runs out, a capture that fails, convolutions, the step of every stage,
kernels by name, streaming, NCCL, compiled steps, metrics.  Every item is on disk as soon as it is measured; the same
command resumes where it was stopped.  A second process does the work: one that crashes or hangs costs its item, and the
next one follows.  On a slow host, `--retry --item-seconds 900 --seconds 1800` gives an item that compiles more time.

The exit code is 0 when all items are there, 75 when time ran out before, 1 when items failed (`--retry` tries them
again).  `--parts stages,kernels` measures these parts alone.  `--small` measures reduced sizes, without expectations; a
CPU always does.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.first_gpu.record import Record
from pggan.core.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER_ERROR

ROOT = Path(__file__).parents[2]
SECONDS = 570  # of a loan of ten minutes
ITEM_SECONDS = 200  # an item that takes longer hangs; compiling at 1024x1024 is the longest
POLL_SECONDS = 0.2
RESULTS = ROOT / "benchmarks" / "results"


def main() -> int:
    """Measure what is missing in the result file; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "first_gpu.json", help="the result file")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="deadline of this call")
    parser.add_argument("--item-seconds", type=float, default=ITEM_SECONDS, help="an item that takes longer is ended")
    parser.add_argument("--device", default="auto", help="auto, cuda or cpu")
    parser.add_argument("--parts", default="all", help="all, or some of them: stages,kernels")
    parser.add_argument("--small", action="store_true", help="reduced sizes; a CPU always has them")
    parser.add_argument("--retry", action="store_true", help="try items again that have failed")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    record = Record(arguments.out.absolute())  # the other process works in another directory
    if arguments.retry:
        record.forget_failures()
    with TemporaryDirectory(prefix="pggan-first-gpu-") as folder:
        flags = [str(record.path), arguments.device, folder, arguments.parts, *["small"] * arguments.small]
        while time.monotonic() < deadline:
            record.forget_running()
            tried, code = record.tried, work(record, flags, deadline, arguments.item_seconds)
            record.reload()
            if not code:
                break
            limit = f"-9: no end within the {arguments.item_seconds:g} s of --item-seconds"
            record.failed_while_running(f"its process ended with exit code {code} ({limit})")
            if record.tried == tried:
                print("The process that measures has ended before it measured anything: see above.")
                return EXIT_USER_ERROR if code == EXIT_USER_ERROR else EXIT_FAILED
    print(record.conclusion())
    if not record.complete:
        print(f"Time is up, or it was stopped: give the same command again.  Results so far: {arguments.out}")
        return EXIT_INTERRUPTED
    print(f"All figures: {arguments.out}")
    return EXIT_FAILED if record.failures else 0


def work(record: Record, flags: list[str], deadline: float, item_seconds: float) -> int | None:
    """Let a process measure items until all are there, it fails, an item takes longer than allowed, or time is up.

    Returns its exit code; None if it was stopped because time is up.
    """
    left = deadline - time.monotonic()
    command = [sys.executable, "-m", "benchmarks.first_gpu.worker", str(left), *flags]
    # In a session of its own, so that the processes that it starts end with it.
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)  # noqa: S603 - our own command
    try:
        while (code := process.poll()) is None:
            time.sleep(POLL_SECONDS)
            if time.monotonic() > deadline:
                return None
            if record.idle_seconds() > item_seconds:
                return -signal.SIGKILL
        return code
    except KeyboardInterrupt:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
