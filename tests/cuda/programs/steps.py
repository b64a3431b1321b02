"""Trains through growth in many configurations on the null GPU, with CUDA graphs; prints what happened as JSON.

Run by test_steps.py, which says what has to happen.
"""

import json
import traceback
from collections import Counter
from typing import Any

from pggan.config import Switch
from pggan.networks import efficientnet_lite0
from pggan.ops import fused
from pggan.training import cuda_graphs
from pggan.training.trainer import Trainer
from tests.cuda.null_gpu import session
from tests.cuda.programs.trainers import growth, new_trainer, take_step
from tests.definitions import LOSSES

BATCH = 8
PHASES = [phase for phase in growth(4, 16, BATCH) if phase.name in ("4x4 stable", "8x8 fade", "16x16 stable")]
WARMUP_STEPS = 1  # instead of three: each costs as much as a capture
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
AUGMENTATIONS = ("none", "ada", "diffaugment")
PENALTIES = ("autograd", "jvp")
Configuration = dict[str, Any]


def configurations() -> list[Configuration]:
    """Every loss in every precision; any two values of any two keys meet (test_steps.py checks it)."""
    return [
        {
            "loss": name,
            "precision": precision,
            "augmentation": AUGMENTATIONS[(loss + number) % 3],
            "penalty": PENALTIES[(loss + number) % 2],
            "num_classes": (0, 3)[(loss + number // 2) % 2],
            "micro_batch_size": (None, 4)[(loss // 2 + number) % 2],
            "reg_interval": (1, 2)[(loss + 3 * number) // 2 % 2],
        }
        for loss, name in enumerate(LOSSES)
        for number, precision in enumerate(PRECISIONS)
    ]


def projected() -> list[Configuration]:
    """With pretrained features from 16x16 on, as hours= chooses them, in two precisions."""
    usual = {"loss": "logistic", "augmentation": "ada", "penalty": "autograd", "num_classes": 0, "reg_interval": 2}
    features = {"features": "efficientnet-lite0", "micro_batch_size": None}
    return [usual | features | {"precision": precision} for precision in ("fp32", "bf16")]


def build(configuration: Configuration, cuda_graphs: Switch) -> tuple[Trainer, list[str]]:
    """A trainer with this configuration, and the list of what it logs."""
    others = dict(configuration)
    compute = {"micro_batch_size": others.pop("micro_batch_size"), "cuda_graphs": cuda_graphs}
    return new_trainer(PHASES, **others, compute=compute)


def grow(configuration: Configuration) -> dict[str, Any]:
    """Train through PHASES, each until every kind of its steps has been captured and replayed once more."""
    trainer, notices = build(configuration, Switch.on)
    kinds, captures, replays = configuration["reg_interval"], [], []
    steady: Counter[tuple[str, str]] = Counter()
    for phase in PHASES:
        for _ in range(kinds * (WARMUP_STEPS + 1)):
            take_step(trainer, phase)
        captures.append(len(trainer.graphs.captured))
        session.reset()
        with session.watched(steady):
            for _ in range(kinds):
                take_step(trainer, phase)
        replays.append(session.counts()["graph launch"])
    return {"notices": notices, "captures": captures, "replays": replays, "steady": listed(steady)}


def grow_eagerly(configuration: Configuration) -> dict[str, Any]:
    """Train through PHASES without CUDA graphs: three steps of every kind, and one more, which is watched."""
    trainer, notices = build(configuration, Switch.off)
    steady: Counter[tuple[str, str]] = Counter()
    for phase in PHASES:
        for _ in range(3 * configuration["reg_interval"]):
            take_step(trainer, phase)
        with session.watched(steady):
            for _ in range(configuration["reg_interval"]):
                take_step(trainer, phase)
    return {"notices": notices, "steady": listed(steady)}


def listed(places: Counter[tuple[str, str]]) -> list[str]:
    """What costs the host time, with the line that asks for it."""
    return sorted(f"{what} in {where}" for what, where in places)


def attempt(function: Any, *arguments: Any) -> dict[str, Any]:
    """What `function` returns, or the error that it raises."""
    try:
        return function(*arguments)
    except Exception:
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    cuda_graphs.WARMUP_STEPS = WARMUP_STEPS
    chosen = configurations()
    found = {
        "captured": [{"about": one, **attempt(grow, one)} for one in chosen],
        "eager": [{"about": one, **attempt(grow_eagerly, one)} for one in chosen[::5]],
    }
    if efficientnet_lite0.is_installed():
        found["projected"] = [{"about": one, **attempt(grow, one)} for one in projected()]
    print(json.dumps(found | {"fused_kernels": fused.KERNELS.working}))
