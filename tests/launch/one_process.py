"""The command line in a forked process, with what its launcher gives it; started by `Forked`."""

import ctypes
import os
import sys

NEW_NETWORK = 0x40000000  # CLONE_NEWNET


def run(
    arguments: list[str], output: str, environment: dict[str, str], folder: str, commit: str, namespace: str
) -> None:
    """Run `pggan` with `arguments`; the others are as in `Forked`."""
    os.setsid()
    if namespace:
        with open(f"/run/netns/{namespace}") as file:
            assert ctypes.CDLL(None).setns(file.fileno(), NEW_NETWORK) == 0
    os.environ.update(environment)
    os.chdir(folder)
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)

    from pggan.cli.main import main
    from pggan.config import describe

    if commit:
        describe._commit = lambda: commit
    code = main(arguments)
    sys.stdout.flush()
    sys.exit(code)
