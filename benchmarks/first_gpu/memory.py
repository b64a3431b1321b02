"""Part 5: a step that needs more memory than there is continues with smaller micro-batches."""

from collections.abc import Iterator

import torch

from benchmarks.first_gpu.context import Context, Item, Judgement, train_config
from benchmarks.first_gpu.record import Figures
from pggan.config import TrainConfig
from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.distributed.process_group import ProcessGroup
from pggan.training.build import build_trainer
from pggan.training.step import Trainer

BATCH, STEPS = 32, 6
# Of what a step of the whole batch needs.  More than half of that are activations, and half of the batch needs half.
SHARE = 0.78


def items(context: Context) -> Iterator[Item]:
    """One stage, first with all the memory, then with less."""
    yield "memory", lambda: run_out(context)


def run_out(context: Context) -> Figures:
    """The micro-batches of a trainer whose memory does not suffice for its batch."""
    side = 64 if context.small else 256
    trainer, _ = make(context, side)
    take(trainer, context, side, 1)  # cuDNN tries its plans, which may take much more
    torch.cuda.reset_peak_memory_stats()
    take(trainer, context, side, 1)  # eager, too: captures come later
    needed = torch.cuda.max_memory_allocated()
    del trainer
    context.begin_item()
    allowed = torch.cuda.memory_allocated() + SHARE * needed
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.mem_get_info()[1])
    try:
        trainer, notices = make(context, side)
        metrics = take(trainer, context, side, STEPS)
        finite = bool(torch.isfinite(metrics["D/loss"] + metrics["G/loss"]))
        micro_batch = trainer.micro_batch_sizes.get((side, BATCH))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return {"needed_bytes": needed, "notices": notices, "finite": finite, "micro_batch": micro_batch}


def config_of(side: int) -> TrainConfig:
    """The default configuration of one stage."""
    sides = (f"schedule.first_resolution={side}", f"schedule.final_resolution={side}")
    return train_config(*sides, f"schedule.batch={BATCH}")


def make(context: Context, side: int) -> tuple[Trainer, list[str]]:
    """A trainer of one stage with default settings, and the list that it logs to."""
    config = config_of(side)
    notices: list[str] = []
    trainer = build_trainer(
        config,
        config.model.architecture(side, 3, 0),
        config.schedule.build().phases,
        ProcessGroup.single_process(context.device),
        log=notices.append,
    )
    return trainer, notices


def take(trainer: Trainer, context: Context, side: int, steps: int) -> dict[str, torch.Tensor]:
    """Take steps; returns the metrics of the last."""
    (phase,) = config_of(side).schedule.build().phases
    metrics: dict[str, torch.Tensor] = {}
    for step in range(steps):
        rng = StepRng(0, step * BATCH, context.device)
        images = rng.uniform("reals", BATCH, 3, side, side) * 2 - 1
        metrics = trainer.step(phase, Reals(images, None, None), rng, 0.9)
    return metrics


def judge(context: Context, found: dict[str, Figures]) -> Judgement:
    """Smaller micro-batches, a notice of each halving, and losses that are finite."""
    one = found["memory"]
    about_memory = [notice for notice in one["notices"] if notice.startswith("Out of memory")]
    good = one["finite"] and about_memory and one["micro_batch"] == BATCH >> len(about_memory)
    measured = f"micro-batches of {one['micro_batch']} in place of {BATCH}; {' '.join(one['notices']) or 'no notice'}"
    return Judgement(measured, "smaller ones, one notice of each halving, continues", bool(good))
