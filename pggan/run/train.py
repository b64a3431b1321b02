"""`pggan train`: one rank per device, and the loop that each of them runs."""

import os
from dataclasses import replace
from functools import partial

from pggan.checkpoints.write import NonFiniteError
from pggan.config import TrainConfig
from pggan.config.describe import to_plain
from pggan.core.cpu import threads_per_rank
from pggan.core.devices import choose_device, count_devices
from pggan.core.errors import UserError
from pggan.core.rng import StepRng
from pggan.core.signals import interrupt_message
from pggan.distributed.process_group import ProcessGroup, RankInfo, rank_from_environment, run_distributed
from pggan.optim.batch_partition import BatchPartition
from pggan.optim.updates import ema_decay
from pggan.run.open_run import open_run
from pggan.run.run_dir import choose_run_dir, next_start


def run(config: TrainConfig) -> int:
    """Train to the end of the schedule, or resume it, on all devices that `config` asks for; returns the exit code."""
    info = rank_from_environment()
    if info is not None:
        return join_ranks(config, info)
    refuse_copies(config)
    kind, count = count_devices(config.devices)
    if count * config.distributed.nnodes == 1:
        return train(config, ProcessGroup.single_process(choose_device(kind)))
    return launch_ranks(config, kind, count)


def train(config: TrainConfig, group: ProcessGroup) -> int:
    """Train on one rank: the step, over and over, and what is due in between; returns the exit code."""
    with open_run(config, group) as (trainer, stream, events):
        state = trainer.state
        events.begin(stream.pyramid)
        while True:
            try:
                while (phase := events.before_step()) is not None:
                    rng = StepRng(config.seed, state.images, group.device)
                    decay = ema_decay(state.images, phase.batch, **vars(config.ema))
                    metrics = trainer.step(phase, stream.batch(phase, rng), rng, decay)
                    events.after_step(phase, metrics)
                events.finish()
                return events.exit_code()
            except NonFiniteError as problem:
                events.roll_back(problem)


def join_ranks(config: TrainConfig, info: RankInfo) -> int:
    """Train as one of the ranks that a launcher has started."""
    if config.run_dir is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0:
        raise UserError("Ranks that are restarted need a run directory to resume from.", "Add run_dir=DIR.")
    if config.compute.deterministic:  # NVSwitch sums in any order: https://github.com/NVIDIA/nccl/issues/1497
        os.environ.setdefault("NCCL_ALGO", "^NVLS,NVLSTree")
    return run_distributed(info, config.devices, partial(train, config))


def launch_ranks(config: TrainConfig, kind: str, count: int) -> int:
    """Start `count` ranks on this machine; they get the configuration as it was composed here, once."""
    from pggan.distributed.launch import launch

    # These refuse here what every rank would refuse after it has started.
    batches = (phase.batch for phase in config.schedule.build().phases)
    BatchPartition.of(config, batches, count * config.distributed.nnodes)
    # Named here, so that ranks restarted after a loss come back to it.
    run_dir = choose_run_dir(config)
    config = replace(config, run_dir=str(run_dir), devices=f"cpu:{count}" if kind == "cpu" else str(count))
    threads = config.threads or threads_per_rank(count, elastic=config.elastic)
    then = partial(next_start, run_dir)
    with interrupt_message(then):
        return launch("train", to_plain(config), count, config.distributed, threads=threads, then=then)


def refuse_copies(config: TrainConfig) -> None:
    """Raise UserError when srun has started this command several times, which do not know of each other."""
    tasks, nnodes = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")), config.distributed.nnodes
    if tasks > 1 and tasks != nnodes:
        raise UserError(
            f"srun has started this command {tasks} times, and each would train a run of its own.",
            "Start it once per machine (--ntasks-per-node=1), with distributed.nnodes= and distributed.rdzv_endpoint=, "
            "as scripts/slurm/train.sbatch does. For separate runs: env -u SLURM_STEP_NUM_TASKS pggan train …",
        )
