"""Programs that run on the null GPU, and print as JSON what happened: `python -m tests.cuda.programs NAME`.

test_steps.py says what has to happen.
"""

import gc
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from pggan.core.architecture import Precision
from pggan.core.devices import configure_process
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase, Schedule
from pggan.distributed.process_group import ProcessGroup
from pggan.losses.base import Reals
from pggan.networks import efficientnet_lite0
from pggan.ops import fused, rgb
from pggan.training import trainer as trainer_module
from pggan.training.build import TrainerSettings, build_trainer
from pggan.training.trainer import Trainer
from tests.cuda.null_gpu import session
from tests.definitions import LOSSES, variant

CUDA = torch.device("cuda")
MIB = 2**20
Found = dict[str, Any]


def new_trainer(
    phases: Sequence[Phase],
    *,
    width: int = 16,
    loss: str = "wgan_gp",
    reg_interval: int = 1,
    ada: bool = False,
    precision: str = "fp32",
    micro_batch_size: int | None = None,
    cuda_graphs: bool = True,
    **networks: object,
) -> Trainer:
    """A trainer of networks `width` feature maps wide."""
    settings = TrainerSettings(
        loss=replace(LOSSES[loss], reg_interval=reg_interval),
        ada_rampup_images=1000 if ada else None,
        precision=Precision(precision),
        micro_batch_size=micro_batch_size,
        cuda_graphs=cuda_graphs,
    )
    configure_process(CUDA)
    architecture = variant(
        resolution=phases[-1].resolution, fmap_base=16 * width, fmap_max=width, latent_size=width, **networks
    )
    return build_trainer(settings, architecture, phases, ProcessGroup.single_process(CUDA))


def growth(final: int, batch: int, *names: str) -> list[Phase]:
    """Phases from 4 to `final` pixels, of these names or all."""
    lengths = {"stable_images": {4: 1 << 20}, "fade_images": {4: 1 << 20}}
    rates = {"learning_rate_g": {4: 0.001}, "learning_rate_d": {4: 0.001}}
    schedule = Schedule(first_resolution=4, final_resolution=final, batch={4: batch}, **lengths, **rates)
    return [phase for phase in schedule.phases if not names or phase.name in names]


def take_steps(trainer: Trainer, phase: Phase, count: int = 1) -> None:
    """Steps of `phase`, with images that are on the device already."""
    images = torch.empty(phase.batch, 3, phase.resolution, phase.resolution, device=CUDA)
    classes = trainer.state.g_ema.architecture.num_classes
    labels = torch.empty(phase.batch, classes, device=CUDA) if classes else None
    for _ in range(count):
        trainer.step(phase, Reals(images, labels, labels), StepRng(0, trainer.state.images, CUDA), 0.99)


def attempt(function: Any, *arguments: Any) -> Found:
    """What `function` returns, or the error that it raises."""
    try:
        return function(*arguments)  # type: ignore[no-any-return]
    except Exception:
        return {"error": traceback.format_exc()}


# ---- steps while networks grow -------------------------------------------------------------------------------------


def configurations(every: bool) -> list[Found]:
    """One, or every loss in every precision, with other options in turn; pretrained features where they are there."""
    found: list[Found] = [{"loss": "logistic", "precision": "bf16", "ada": True, "reg_interval": 2}]
    if every:
        for number, loss in enumerate(LOSSES):
            for place, precision in enumerate(("fp32", "bf16", "fp16")):
                one = {"loss": loss, "precision": precision, "reg_interval": 1 + (number + place) % 2}
                more = {"num_classes": 3 * (place % 2), "micro_batch_size": (None, 4)[(number + place // 2) % 2]}
                found.append({**one, **more, "ada": bool(number % 2)})
        if efficientnet_lite0.is_installed():
            found += [found[0] | {"features": "efficientnet-lite0@0", "precision": name} for name in ("fp32", "bf16")]
    return found


def grow(configuration: Found, cuda_graphs: bool) -> Found:
    """Train through three phases until every kind of step was captured, and replayed once more while it is watched."""
    phases = growth(16, 8, "4x4 stable", "8x8 fade", "16x16 stable")
    trainer = new_trainer(phases, **configuration, cuda_graphs=cuda_graphs)
    kinds, replays = configuration["reg_interval"], []
    steady: Counter[tuple[str, str]] = Counter()
    for phase in phases:
        take_steps(trainer, phase, 3 * kinds)
        session.reset()
        with session.watched(steady):
            take_steps(trainer, phase, kinds)
        replays.append(session.counts()["graph launch"])
    places = sorted(f"{what} in {where}" for what, where in steady)
    return {"replays": replays, "steady": places}


def steps(every: str = "") -> list[Found]:
    """What became of every configuration, with CUDA graphs and without."""
    trainer_module.WARMUP_STEPS = 1  # instead of three: each costs as much as a capture
    found = []
    for number, one in enumerate(configurations(bool(every))):
        for graphs in (True, False) if number % 5 == 0 else (True,):
            found.append({"about": one | {"graphs": graphs}, **attempt(grow, one, graphs)})
            gc.collect()
    return found


# ---- captures that fail ----------------------------------------------------------------------------------------------


def failures() -> Found:
    """What a step says that does not fit into memory, or waits for the device; and what goes on afterwards."""
    (phase,) = growth(64, 32, "32x32 stable")
    trainer, stream = new_trainer([phase]), torch.cuda.current_stream()
    take_steps(trainer, phase, 3)
    session.set_card_bytes(torch.cuda.memory_reserved(CUDA) // 2)
    too_small = attempt(take_steps, trainer, phase)
    session.set_card_bytes(2**37)
    trainer = new_trainer([phase])
    step = trainer.eager_step

    def waits(inputs: Any) -> Any:
        metrics = step(inputs)
        metrics["D/loss"].item()
        return metrics

    trainer.eager_step = waits  # type: ignore[method-assign]
    not_allowed = attempt(take_steps, trainer, phase, 4)
    session.reset()
    take_steps(new_trainer([phase]), phase, 5)
    again = torch.cuda.current_stream() == stream, session.counts()["graph launch"]
    return {"too_small": too_small, "not_allowed": not_allowed, "again": again}


# ---- launches of a step ----------------------------------------------------------------------------------------------

BATCHES = {4: 128, 16: 128, 64: 32, 256: 8, 1024: 4}  # the official ones for one GPU, at every other resolution


def launches() -> dict[str, dict[str, int]]:
    """Counts by row: stages of the paper's networks in the default way; every other way at 16x16, 64 wide."""
    for module in (fused, rgb):
        module.dense = counted_dense  # type: ignore[attr-defined]
    trainer_module.WARMUP_STEPS = 2  # instead of three: the second one finds Adam's moments, as all later ones do
    phases = {phase.name: phase for phase in growth(1024, 4)}
    trainer = new_trainer([*phases.values()], width=512, precision="bf16")
    found = {}
    for name in (*(f"{side}x{side} stable" for side in BATCHES), "1024x1024 fade"):
        phase = replace(phases[name], batch=BATCHES[phases[name].resolution])
        found[f"{phase.resolution} {name.split()[1]} wgan_gp bf16"] = counts_of(trainer, phase)
    del trainer
    phase = replace(phases["16x16 stable"], batch=128, missing_levels=0)
    for loss in LOSSES:
        for precision in ("fp32", "bf16", "fp16"):
            gc.collect()  # the trainer before refers to itself
            trainer = new_trainer([phase], width=64, loss=loss, precision=precision)
            found[f"16 stable {loss} {precision}, 64 wide"] = counts_of(trainer, phase)
            del trainer
    return found


def counted_dense(maps: torch.Tensor, dense: Any = fused.dense) -> Any:
    """What `fused.dense` returns; counts maps that it copies."""
    session.count_copy(maps)
    return dense(maps)


def counts_of(trainer: Trainer, phase: Phase) -> dict[str, int]:
    """The counts of an eager step, those of its graph, and those of a step that replays the graph."""
    take_steps(trainer, phase)
    torch.cuda.reset_peak_memory_stats()
    counted = []
    for _ in range(3):  # eager, captured, replayed
        session.reset()
        take_steps(trainer, phase)
        counted.append(session.counts())
        if len(counted) == 1:
            copied = session.copied_maps[0]
            peak = torch.cuda.max_memory_allocated(CUDA)
    (eager, captured, replay), copies, waits = counted, ("copy ",), ("wait: ", "pageable ")
    launched = replay["kernel"] + replay["triton kernel"] + replay["memset"] + replay["graph launch"]
    return {
        "kernels": eager["kernel"],
        "triton": eager["triton kernel"],
        "products": eager["product"],
        "memsets": eager["memset"],
        "copies": total(eager, copies),
        "waits": total(eager, waits),
        "copied_maps": copied,
        "peak_mib": -(-peak // MIB),  # the most memory of all tensors at a time
        "graph_nodes": captured["graph nodes"],
        "replay_launches": launched,
        "replay_copies": total(replay, copies),
        "replay_waits": total(replay, waits),
    }


def total(counts: Counter[str], beginnings: tuple[str, ...]) -> int:
    """The sum of all counts whose names begin so."""
    return sum(number for name, number in counts.items() if name.startswith(beginnings))


if __name__ == "__main__":
    programs = {function.__name__: function for function in (steps, failures, launches)}
    print(json.dumps(programs[sys.argv[1]](*sys.argv[2:])), flush=True)
    os._exit(0)  # PyTorch's backward thread may still free Python objects, which aborts a process that is ending
