"""Counts what one step asks of the device; prints the counts as JSON.

`python -m tests.cuda.launches` builds the null GPU, runs this and writes the table.
"""

import gc
import json
from dataclasses import replace

import torch

from pggan.core.schedule import Phase
from pggan.training import cuda_graphs
from pggan.training.trainer import Trainer
from tests.cuda.null_gpu import session
from tests.cuda.programs.trainers import CUDA, growth, new_trainer, take_step
from tests.definitions import LOSSES

BATCHES = {4: 128, 16: 128, 64: 32, 256: 8, 1024: 4}  # the official ones for one GPU, at every other resolution
PHASES = growth(4, 1024, 4)
MIB = 2**20
WARMUP_STEPS = 2  # instead of three: the second one finds Adam's moments, as all later ones do


def phase_of(resolution: int, kind: str) -> Phase:
    """The phase of the paper's schedule, with the official batch."""
    (found,) = (phase for phase in PHASES if phase.name == f"{resolution}x{resolution} {kind}")
    return replace(found, batch=BATCHES[resolution])


def rows() -> dict[str, dict[str, int]]:
    """The counts by row: stages of the paper's networks in the default way; every other way at 16x16, 64 wide."""
    trainer, _ = new_trainer(PHASES, width=512, precision="bf16")
    stages = [*((resolution, "stable") for resolution in BATCHES), (1024, "fade")]
    found = {f"{side} {kind} wgan_gp bf16": counts_of(trainer, phase_of(side, kind)) for side, kind in stages}
    del trainer
    phase = phase_of(16, "stable")
    for loss in LOSSES:
        for precision in ("fp32", "bf16", "fp16"):  # tf32 takes other units for the launches of fp32
            gc.collect()  # the trainer before refers to itself
            trainer, _ = new_trainer([phase], width=64, loss=loss, precision=precision)
            found[f"16 stable {loss} {precision}, 64 wide"] = counts_of(trainer, phase)
            del trainer
    return found


def counts_of(trainer: Trainer, phase: Phase) -> dict[str, int]:
    """The counts of an eager step, those of its graph, and those of a step that replays the graph.

    `made_mib` are all tensors that the step makes, `peak_mib` the most that there are at a time.
    """
    for _ in range(WARMUP_STEPS - 1):
        take_step(trainer, phase)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    session.reset()
    take_step(trainer, phase)
    eager, memory = session.counts(), torch.cuda.memory_stats(CUDA)
    session.reset()
    take_step(trainer, phase)
    nodes = session.counts()["graph nodes"]
    session.reset()
    take_step(trainer, phase)
    replay = session.counts()
    return {
        "kernels": eager["kernel"],
        "triton": eager["triton kernel"],
        "products": eager["product"],
        "memsets": eager["memset"],
        "copies": total(eager, "copy "),
        "waits": total(eager, "wait: ", "pageable "),
        "made_mib": -(-memory["allocated_bytes.all.allocated"] // MIB),
        "peak_mib": -(-memory["allocated_bytes.all.peak"] // MIB),
        "graph_nodes": nodes,
        "replay_launches": replay["kernel"] + replay["triton kernel"] + replay["memset"] + replay["graph launch"],
        "replay_copies": total(replay, "copy "),
        "replay_waits": total(replay, "wait: ", "pageable "),
    }


def total(counts: dict[str, int], *beginnings: str) -> int:
    """The sum of all counts whose names begin so."""
    return sum(number for name, number in counts.items() if name.startswith(beginnings))


if __name__ == "__main__":
    cuda_graphs.WARMUP_STEPS = WARMUP_STEPS
    print(json.dumps(rows()))
