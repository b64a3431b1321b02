"""One of several processes, with what a launcher gives it; run by the `ranks` fixture."""

import ctypes
import os
import sys

NEW_NETWORK = 0x40000000  # CLONE_NEWNET

given = dict(globals())
if given["NAMESPACE"]:
    with open(f"/run/netns/{given['NAMESPACE']}") as namespace:
        assert ctypes.CDLL(None).setns(namespace.fileno(), NEW_NETWORK) == 0
os.environ.update(given["ENVIRONMENT"])
os.chdir(given["FOLDER"])
with open(given["OUTPUT"], "w") as output:
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)

from pggan import cli, run_dir  # noqa: E402

if given["COMMIT"]:
    run_dir._commit = lambda: given["COMMIT"]
code = cli.main(["train", *given["ARGUMENTS"]])
sys.stdout.flush()
sys.exit(code)
