"""`python -m pggan.distributed.worker`: one of the processes that `pggan train` starts."""

import os
import signal
import sys
import time
from threading import Thread

from omegaconf import OmegaConf

from pggan.cli import guarded
from pggan.config import TrainConfig
from pggan.launch import CONFIG_VARIABLE, PARENT_VARIABLE, run
from pggan.schema import validated

LOOK_SECONDS = 0.5


def end_with_parent(parent: int) -> None:
    """Save and end when the parent is gone, which nobody can then tell this process to."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Train as the parent's configuration says; returns the exit code."""
    values = OmegaConf.to_container(OmegaConf.create(os.environ.pop(CONFIG_VARIABLE)))
    assert isinstance(values, dict), "the parent writes keys and values"
    Thread(target=end_with_parent, args=(int(os.environ[PARENT_VARIABLE]),), name="parent", daemon=True).start()
    return guarded(lambda: run(validated(TrainConfig, {str(key): value for key, value in values.items()})))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # torch's threads may crash a process that takes itself apart while others are already gone
