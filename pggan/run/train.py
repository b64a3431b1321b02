"""`pggan train` starts one rank per device; each rank runs the training loop of this module."""

import gc
import os
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from pggan.checkpoints.read import checkpoints_of, mark_of, newest_checkpoint
from pggan.checkpoints.write import NonFiniteError, prune
from pggan.config.train import TrainConfig
from pggan.core.devices import choose_device, count_devices
from pggan.core.errors import StepFailed, UserError, require
from pggan.core.process import threads_per_rank
from pggan.core.rng import StepRng
from pggan.distributed.launch import killed_if_stopped, launch
from pggan.distributed.process_group import PeerLost, ProcessGroup, RankInfo, rank_from_environment, run_distributed
from pggan.optim.updates import ema_decay
from pggan.run.compose import FindImages, open_run
from pggan.run.console import LastingConsole
from pggan.run.loop import Run
from pggan.run.run_dir import choose_run_dir, lock_run_dir, next_start
from pggan.run.summary import ending

RUN_DIR = "run_dir"  # key of the run directory in `ProcessGroup.kept()`; all other keys there are compute.* settings
MAX_FAILURES = 3  # after this many rollbacks in one process, the next NaN or infinite number ends training
REMEDY = (
    "Lower schedule.learning_rate_g and schedule.learning_rate_d, or raise the weight of the gradient penalty "
    "(loss.*), and give the command again with run_dir=: the run resumes from its last checkpoint."
)


def run(config: TrainConfig, find_images: FindImages | None = None) -> int:
    """Train to the end of the schedule on all devices of `config`; returns the exit code."""
    find_images = find_images or (lambda resolution: Path(config.data.path or config.data.cache))
    info = rank_from_environment()
    if info is not None:
        return join_ranks(config, info, find_images)
    refuse_copies(config)
    if config.distributed.nnodes == 1 and (images := ended_at(config)):
        run_dir, console = Path(str(config.run_dir)), LastingConsole()
        with lock_run_dir(run_dir):
            prune(run_dir, images, config.checkpoint.keep)  # removes old checkpoints that a killed command has left
        console.say(f"Nothing was trained, because the run in {run_dir} has ended. Another run needs another run_dir=.")
        console.box(ending(run_dir, images))
        return 0
    kind, count = count_devices(config.devices)
    if count * config.distributed.nnodes == 1:
        return train(config, find_images, ProcessGroup.single_process(choose_device(kind)))
    alone = config.loss.name != "object" and config.model.discriminator is None
    require(alone, "devices", config.devices, "one device: with your own loss or D, more devices need torchrun")
    return launch_ranks(config, kind, count)


def ended_at(config: TrainConfig) -> int:
    """Return the image count at which the run in config.run_dir has ended, or 0 if the run has not ended."""
    run_dir, total = Path(config.run_dir or ""), config.schedule.build().total
    found = checkpoints_of(run_dir) if config.run_dir is not None and config.resume == "auto" else []
    planned = (mark_of(found[-1], "total_images") if found else None) or total
    if not found or int(found[-1].name) < (max(planned, total) if config.hours is None else planned):
        return 0
    checkpoint, _ = newest_checkpoint(run_dir)  # verifying large files is slow, so the cheap checks come first
    return 0 if checkpoint is None or checkpoint.directory != found[-1] else checkpoint.images


def train(config: TrainConfig, find_images: FindImages, group: ProcessGroup) -> int:
    """Run this rank's training; after NaN, infinity or a failed step, the run resumes from its newest checkpoint."""
    run: Run | None = None
    began: float | None = None
    stop = False  # whether a signal has asked training to stop
    bad: list[int] = []  # image counts at which gradients or weights were NaN or infinite
    while True:
        try:
            with open_run(resumed(config, group), find_images, group, began) as run:
                run.interruption.wanted |= stop
                group.keep({RUN_DIR: str(run.run_dir)})
                return take_steps(run, config)
        except (NonFiniteError, StepFailed) as problem:
            if run is None:  # the run could not be opened, so nothing can be rolled back
                raise
            began, stop = run.began, run.interruption.wanted
            require_remedy(group, run, problem, bad)
        run = None
        gc.collect()  # frees the old trainer, which is in a reference cycle with CUDA graphs


def take_steps(run: Run, config: TrainConfig) -> int:
    """Repeat the training step until the run ends; returns the exit code."""
    trainer, state = run.trainer, run.state
    while (phase := run.next_phase()) is not None:
        rng = StepRng(config.seed, state.images, run.group.device)
        decay = ema_decay(state.images, phase.batch, **vars(config.ema))
        run.after_step(phase, trainer.step(phase, run.stream.batch(phase, rng), rng, decay))
    return run.finish()


def resumed(config: TrainConfig, group: ProcessGroup) -> TrainConfig:
    """Return the configuration that resumes the run after a failure, or `config` if no run had been opened yet."""
    if not (compute := group.kept()):
        return config
    run_dir = compute.pop(RUN_DIR)
    resume = "auto" if group.broadcast_object(bool(checkpoints_of(Path(run_dir)))) else config.resume
    return replace(config, run_dir=run_dir, resume=resume, compute=replace(config.compute, **compute))


def require_remedy(group: ProcessGroup, run: Run, problem: NonFiniteError | StepFailed, bad: list[int]) -> None:
    """Raise UserError if resuming can't help after `problem`; else warn, and keep compute keys for the resumed run."""
    if isinstance(problem, StepFailed):
        if not problem.compute:
            raise problem
        group.keep(problem.compute)
        if group.world_size > 1:  # the other ranks wait in a collective, so only a restart of all ranks helps
            raise PeerLost(f"{group.name}: {problem.problem}") from problem
        keys = " ".join(f"compute.{key}={value}" for key, value in problem.compute.items())
        run.reporter.warn(f"{problem.problem} The run continues with {keys}.")
        return
    images = problem.images or run.state.images
    with group.collective_errors():
        if group.is_main:
            checkpoint, _ = newest_checkpoint(run.run_dir)
            where = f"Numbers were NaN or infinite at {images:,} images"
            if checkpoint is None:
                raise UserError(f"{where}, before the first checkpoint: {problem}.", REMEDY)
            # A resumed run repeats all random numbers.  A problem that occurs again would never go away.
            if len(bad) == MAX_FAILURES or images <= max(bad, default=-1):
                raise UserError(f"A rollback to {checkpoint.images:,} images did not help. {where}: {problem}.", REMEDY)
            back = f"Training rolls back to the checkpoint of {checkpoint.images:,} images"
            run.reporter.warn(f"{where}: {problem}. {back}. If the problem comes back at this point, training ends.")
    bad.append(images)


def join_ranks(config: TrainConfig, info: RankInfo, find_images: FindImages) -> int:
    """Train as one of the ranks that a launcher such as torchrun has started."""
    if config.compute.deterministic:  # NCCL's NVLS algorithms are nondeterministic (github.com/NVIDIA/nccl/issues/1497)
        os.environ.setdefault("NCCL_ALGO", "^NVLS,NVLSTree")
    with killed_if_stopped(config.distributed.heartbeat_timeout_seconds):
        return run_distributed(info, config.devices, partial(train, config, find_images))


def launch_ranks(config: TrainConfig, kind: str, count: int) -> int:
    """Start `count` ranks on this machine; all ranks get the configuration of this process."""
    run_dir = choose_run_dir(config.run_dir, config.name)
    config = replace(config, run_dir=str(run_dir), devices=f"cpu:{count}" if kind == "cpu" else str(count))
    threads = config.threads or threads_per_rank(count, elastic=config.elastic)
    then = partial(next_start, run_dir)
    return launch("train", asdict(config), count, **config.distributed.launcher, threads=threads, then=then)


def refuse_copies(config: TrainConfig) -> None:
    """Raise UserError if srun has started several copies of this command, which would train separate runs."""
    tasks, nnodes = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")), config.distributed.nnodes
    if tasks > 1 and tasks != nnodes:
        problem = f"srun has started {tasks} copies of this command, and each copy would train a run of its own."
        remedy = "Run one copy per machine with distributed.nnodes=, as scripts/slurm/train.sbatch does."
        raise UserError(problem, f"{remedy} For separate runs, use env -u SLURM_STEP_NUM_TASKS pggan train …")
