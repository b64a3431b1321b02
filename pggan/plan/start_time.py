"""How long a run takes from its command to its first update, and from its last one to its end: by a run of one."""

import os
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pggan.config import PlanConfig, TrainConfig
from pggan.config.describe import to_plain
from pggan.core.errors import UserError
from pggan.distributed.agent import PARENT_VARIABLE, TASK_VARIABLE
from pggan.distributed.process_group import RANK_VARIABLES, ProcessGroup


def seconds_of_starting(config: PlanConfig, data: Path, folder: Path, group: ProcessGroup) -> float:
    """Of a run of one update on `data`, as the run of `config` starts on this machine; it is written into `folder`.

    Raises UserError when it does not come to its end.
    """
    task = {"command": "train", "values": shortened(config, data, folder, group)}
    launched = (*RANK_VARIABLES, "TORCHELASTIC_")  # this process may be one of several itself
    variables = {name: value for name, value in os.environ.items() if not name.startswith(launched)}
    variables |= {TASK_VARIABLE: OmegaConf.to_yaml(OmegaConf.create(task)), PARENT_VARIABLE: str(os.getpid())}
    start = time.perf_counter()
    command = [sys.executable, "-m", "pggan.cli.worker"]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    seconds = time.perf_counter() - start
    if ended.returncode:
        said = ended.stderr.strip().removeprefix("Error: ")
        raise UserError(f"A run of one update, for calibrate=true, did not work: {said}", "Leave out calibrate=true.")
    return seconds


def shortened(config: PlanConfig, data: Path, folder: Path, group: ProcessGroup) -> dict[str, Any]:
    """The values of a run of one small update on this machine that is otherwise that of `config`."""
    keys = {field.name for field in fields(TrainConfig)}
    values = {key: value for key, value in to_plain(config).items() if key in keys}
    kind, count = group.device.type, group.local_world_size
    values["devices"] = (f"cpu:{count}" if kind == "cpu" else str(count)) if count > 1 else kind
    values["schedule"] |= {"total_images": 1, "batch": config.model.stddev_group * count, "batch_factor": 1}
    values["distributed"] |= {"nnodes": 1, "rdzv_endpoint": None}
    values["data"]["path"] = str(data)
    return values | {"run_dir": str(folder), "resume": "never", "init_from": None}
