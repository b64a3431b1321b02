"""`python -m pggan VERB key=value …`; without arguments, what a parent put into the environment (a rank of a run)."""

import os

from pggan.core.environment import TASK_VARIABLE

if TASK_VARIABLE in os.environ:
    from pggan.cli.worker import console
else:
    from pggan.cli.main import console

console()
