"""Parts 3 and 6: captured steps are the eager ones, bit by bit; a capture that fails does no harm."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.first_gpu.context import Context, Item, Judgement, in_new_process, train_config
from benchmarks.first_gpu.record import Figures
from pggan.config import Precision
from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.ema import ema_decay
from pggan.optim.state import state_sha256
from pggan.training.build import build_trainer
from pggan.training.compute_options import configure_process
from pggan.training.cuda_graphs import WARMUP_STEPS
from pggan.training.step import Trainer

STEPS, FEW_STEPS = 50, 20
GROWING = [  # 10 steps at 8x8, then a fade to 16x16; learning rates rise all the time
    "model.fmap_max=64",
    "schedule.first_resolution=8",
    "schedule.final_resolution=16",
    "schedule.stable_images=160",
    "schedule.fade_images=1600",
    "schedule.lr_warmup_images=2000",
    "schedule.batch=16",
]


def items(context: Context) -> Iterator[Item]:
    """With deterministic algorithms, which a process chooses before its first product, and as by default.

    Of the reduced sizes, with deterministic ones alone.
    """
    for name, deterministic in (("deterministic", True), ("default", False))[: 1 if context.small else 2]:
        yield (
            name,
            partial(in_new_process, compare, context.device, deterministic, FEW_STEPS if context.small else STEPS),
        )


def compare(device: torch.device, deterministic: bool, steps: int) -> Figures:
    """The states after the same `steps`, captured and eager."""
    configure_process(device, Precision.auto, deterministic=deterministic)
    eager, _ = grown(device, steps, "compute.cuda_graphs=off")
    captured, notices = grown(device, steps)
    state_dicts, others = eager.state.state_dict(), captured.state.state_dict()
    numbers = sum(tensor.numel() for component in state_dicts.values() for tensor in component.values())
    differing = sum(
        int((tensor != others[component][name]).sum())
        for component in state_dicts
        for name, tensor in state_dicts[component].items()
    )
    same = digest(eager) == digest(captured)
    return {"bit_equal": same, "share_of_numbers_that_differ": differing / numbers, "notices": notices}


def grown(device: torch.device, steps: int, *overrides: str) -> tuple[Trainer, list[str]]:
    """A trainer after `steps` of a growing network, and its notices."""
    trainer, notices = make(device, *GROWING, *overrides)
    config = train_config(*GROWING, *overrides)
    schedule, state = config.schedule.build(), trainer.state
    for _ in range(steps):
        phase, rng = schedule.at(state.images), StepRng(0, state.images, device)
        images = rng.uniform("reals", phase.batch, 3, phase.resolution, phase.resolution) * 2 - 1
        trainer.step(phase, Reals(images, None, None), rng, ema_decay(config.ema, state.images, phase.batch))
    return trainer, notices


def make(device: torch.device, *overrides: str) -> tuple[Trainer, list[str]]:
    """A trainer on the device, and the list that it logs to."""
    config = train_config(*overrides)
    architecture = config.model.architecture(config.schedule.final_resolution, 3, 0)
    notices: list[str] = []
    group = ProcessGroup.single_process(device)
    phases = config.schedule.build().phases
    trainer = build_trainer(config, architecture, phases, group, check_memory=False, log=notices.append)
    return trainer, notices


def digest(trainer: Trainer) -> str:
    """The digest of a trainer's state."""
    return state_sha256(trainer.state.state_dict(), trainer.state.images, trainer.state.phase_index)


def judge(context: Context, found: dict[str, Figures]) -> Judgement:
    """Deterministic steps are the same bit by bit; whether others are depends on cuDNN."""
    shares = {name: one["share_of_numbers_that_differ"] for name, one in found.items()}
    words = [
        f"{name}: {'the same bits' if one['bit_equal'] else f'{shares[name]:.1%} differ'}"
        for name, one in found.items()
    ]
    notices = [notice for one in found.values() for notice in one["notices"]]
    good = found.get("deterministic", {}).get("bit_equal", False) and not notices
    return Judgement("; ".join([*words, *notices]), "deterministic: the same bits, no notices", good)


def failing_items(context: Context) -> Iterator[Item]:
    """One step whose capture fails in its middle."""
    yield "failure", lambda: fail(context)


def fail(context: Context) -> Figures:
    """Let a capture fail, and train on."""
    trainer, notices = make(context.device, *GROWING)
    trainer.passes = trainer.passes._replace(d=waiting(trainer.passes.d))
    phase, stream, reserved = train_config(*GROWING).schedule.build().phases[0], torch.cuda.current_stream(), []
    metrics: dict[str, torch.Tensor] = {}
    for step in range(WARMUP_STEPS + 5):
        rng = StepRng(0, step * phase.batch, context.device)
        images = rng.uniform("reals", phase.batch, 3, phase.resolution, phase.resolution) * 2 - 1
        metrics = trainer.step(phase, Reals(images, None, None), rng, 0.9)
        reserved.append(torch.cuda.memory_reserved())
    later, more = make(context.device, *GROWING)
    for step in range(WARMUP_STEPS + 2):
        rng = StepRng(0, step * phase.batch, context.device)
        images = rng.uniform("reals", phase.batch, 3, phase.resolution, phase.resolution) * 2 - 1
        later.step(phase, Reals(images, None, None), rng, 0.9)
    return {
        "notices": notices,
        "finite": bool(torch.isfinite(metrics["D/loss"] + metrics["G/loss"])),
        "default_stream": torch.cuda.current_stream() == stream,
        "reserved_bytes": reserved,
        "notices_of_a_later_capture": more,
    }


def waiting(d: Any) -> Any:
    """D's pass, which waits for the device: no capture may do that."""

    def run(*arguments: Any, **options: Any) -> Any:
        terms = d(*arguments, **options)
        if torch.cuda.is_current_stream_capturing():
            next(iter(terms.loss.values())).sum().item()
        return terms

    return run


def judge_failure(context: Context, found: dict[str, Figures]) -> Judgement:
    """One notice, then training continues, in the memory that it had."""
    one = found["failure"]
    settled = one["reserved_bytes"][WARMUP_STEPS + 1]
    good = (
        len(one["notices"]) == 1
        and one["finite"]
        and one["default_stream"]
        and one["reserved_bytes"][-1] <= settled
        and not one["notices_of_a_later_capture"]
    )
    words = f"{len(one['notices'])} notices, losses {'finite' if one['finite'] else 'NOT finite'}"
    stream = "as before" if one["default_stream"] else "another one"
    return Judgement(f"{words}, stream {stream}", "1 notice, continues, a later capture works", good)
