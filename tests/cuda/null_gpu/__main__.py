"""`python -m tests.cuda.null_gpu [--bytes NUMBER] COMMAND key=value …`: a command of the project on the null GPU.

With `-m MODULE` in place of the command, any other program.
"""

import os
import sys
from pathlib import Path

from tests.cuda.null_gpu.build import build, environment, missing

CACHE = Path.home() / ".cache" / "pggan" / "null_gpu"


def main() -> None:
    """Build the null GPU, and become the program."""
    if reason := missing():
        sys.exit(f"Error: {reason}.")
    arguments, variables = sys.argv[1:], environment(build(CACHE))
    if arguments[:1] == ["--bytes"]:
        variables["NULL_GPU_BYTES"], arguments = arguments[1], arguments[2:]
    if arguments[:1] != ["-m"]:
        arguments = ["-m", "pggan", *arguments]
    os.execve(sys.executable, [sys.executable, *arguments], variables)


if __name__ == "__main__":
    main()
