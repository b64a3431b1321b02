"""`pggan train`: one rank per device, and the loop that each of them runs."""

import gc
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from pggan.checkpoints.read import checkpoints_of, newest_checkpoint
from pggan.checkpoints.write import NonFiniteError
from pggan.config.train import TrainConfig
from pggan.config.values import to_plain
from pggan.core.devices import choose_device, count_devices
from pggan.core.errors import StepOutOfMemory, UserError
from pggan.core.process import threads_per_rank
from pggan.core.rng import StepRng
from pggan.distributed.process_group import ProcessGroup, RankInfo, rank_from_environment, run_distributed
from pggan.distributed.watchdog import killed_if_stopped
from pggan.optim.updates import ema_decay
from pggan.run.compose import FindImages, open_run
from pggan.run.loop import Run
from pggan.run.run_dir import choose_run_dir, next_start

SMALLER_FILE = ".micro_batch_size"  # in the directory of a run whose ranks restart because memory did not suffice
MAX_FAILURES = 3  # of one process: a run that fails more often has diverged
REMEDY = (
    "Lower schedule.learning_rate_g and schedule.learning_rate_d, or raise the weight of the gradient penalty "
    "(loss.*), and give the command again: it resumes from the last checkpoint."
)


def run(config: TrainConfig, find_images: FindImages | None = None) -> int:
    """Train to the end of the schedule, or resume it, on all devices that `config` asks for; returns the exit code.

    Args: find_images: finds the pyramid to train on, or prepares it; without it, that is the pyramid at data.path.
    """
    find_images = find_images or (lambda resolution: Path(config.data.path or config.data.cache))
    info = rank_from_environment()
    if info is not None:
        return join_ranks(config, info, find_images)
    refuse_copies(config)
    kind, count = count_devices(config.devices)
    if count * config.distributed.nnodes == 1:
        return train(config, find_images, ProcessGroup.single_process(choose_device(kind)))
    return launch_ranks(config, kind, count)


def train(config: TrainConfig, find_images: FindImages, group: ProcessGroup) -> int:
    """Train on one rank to the end, or until it is asked to stop; returns the exit code.

    After numbers that are not finite, or where memory no longer suffices, the run is opened again at its checkpoint.
    """
    run: Run | None = None
    began: float | None = None
    bad: list[int] = []  # image counts at which numbers were not finite
    while True:
        try:
            with open_run(config, find_images, group, began) as run:
                return take_steps(run, config)
        except (NonFiniteError, StepOutOfMemory) as problem:
            if run is None:  # it was being opened
                raise
            began = run.began
            config = opened_again(config, group, run, problem, bad)
        run = None
        gc.collect()  # a trainer and its CUDA graphs refer to each other, and would keep their memory


def take_steps(run: Run, config: TrainConfig) -> int:
    """The step, over and over, and what is due in between; returns the exit code."""
    trainer, state = run.trainer, run.state
    while (phase := run.next_phase()) is not None:
        rng = StepRng(config.seed, state.images, run.group.device)
        decay = ema_decay(state.images, phase.batch, **vars(config.ema))
        metrics = trainer.step(phase, run.stream.batch(phase, rng), rng, decay)
        run.after_step(phase, metrics)
    return run.finish()


def opened_again(
    config: TrainConfig, group: ProcessGroup, run: Run, problem: NonFiniteError | StepOutOfMemory, bad: list[int]
) -> TrainConfig:
    """The configuration with which the run resumes from its last checkpoint; raises UserError where that is of no use.

    The same images and random numbers come again.  So a fault of the machine is gone then, and a fault of the recipe
    comes back at the same position.  Where memory did not suffice, half as many images are in each pass.
    """
    run_dir = run.run_dir
    if isinstance(problem, StepOutOfMemory):
        if problem.smaller is None:
            raise problem
        if group.world_size > 1:  # the other ranks are in the middle of a step: the launcher restarts all
            Path(run_dir, SMALLER_FILE).write_text(str(problem.smaller))
            raise problem
        run.reporter.warn(f"{problem.problem} Opening the run again, with {problem.smaller} in each.")
        compute = replace(config.compute, micro_batch_size=problem.smaller)
        resume = "auto" if checkpoints_of(run_dir) else config.resume
        return replace(config, run_dir=str(run_dir), resume=resume, compute=compute)
    images = problem.images or run.state.images
    with group.collective_errors():
        if group.is_main:
            checkpoint, _ = newest_checkpoint(run_dir)
            where = f"Numbers were NaN or infinite at {images:,} images"
            if checkpoint is None:
                raise UserError(f"{where}, before the first checkpoint: {problem}.", REMEDY)
            if len(bad) == MAX_FAILURES or images <= max(bad, default=-1):
                raise UserError(f"{where} again, after rolling back to {checkpoint.images:,}: {problem}.", REMEDY)
            back = f"Rolling back to the checkpoint of {checkpoint.images:,} images"
            run.reporter.warn(f"{where}: {problem}. {back}. If this happens here again, training ends.")
    bad.append(images)
    return replace(config, run_dir=str(run_dir), resume="auto")


def join_ranks(config: TrainConfig, info: RankInfo, find_images: FindImages) -> int:
    """Train as one of the ranks that a launcher has started."""
    if config.run_dir is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0:
        raise UserError("Ranks that are restarted need a run directory to resume from.", "Add run_dir=DIR.")
    if config.compute.deterministic:  # NVSwitch sums in any order: https://github.com/NVIDIA/nccl/issues/1497
        os.environ.setdefault("NCCL_ALGO", "^NVLS,NVLSTree")
    smaller = Path(config.run_dir or "", SMALLER_FILE)
    if config.run_dir is not None and smaller.is_file():
        config = replace(config, compute=replace(config.compute, micro_batch_size=int(smaller.read_text())))
    with killed_if_stopped(config.distributed.heartbeat_timeout_seconds):
        return run_distributed(info, config.devices, partial(train, config, find_images))


def launch_ranks(config: TrainConfig, kind: str, count: int) -> int:
    """Start `count` ranks on this machine; they get the configuration as it was composed here, once."""
    from pggan.distributed.launch import launch

    # Named here, so that ranks restarted after a loss come back to it.
    run_dir = choose_run_dir(config.run_dir, config.name)
    (run_dir / SMALLER_FILE).unlink(missing_ok=True)
    config = replace(config, run_dir=str(run_dir), devices=f"cpu:{count}" if kind == "cpu" else str(count))
    threads = config.threads or threads_per_rank(count, elastic=config.elastic)
    then = partial(next_start, run_dir)
    return launch("train", to_plain(config), count, **config.distributed.launcher, threads=threads, then=then)


def refuse_copies(config: TrainConfig) -> None:
    """Raise UserError when srun has started this command several times, which do not know of each other."""
    tasks, nnodes = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")), config.distributed.nnodes
    if tasks > 1 and tasks != nnodes:
        raise UserError(
            f"srun has started this command {tasks} times, and each would train a run of its own.",
            "Start it once per machine (--ntasks-per-node=1), with distributed.nnodes= and distributed.rdzv_endpoint=, "
            "as scripts/slurm/train.sbatch does. For separate runs: env -u SLURM_STEP_NUM_TASKS pggan train …",
        )
