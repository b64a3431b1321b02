"""How long training stands still for a checkpoint: `python -m benchmarks.saving --resolution 1024`.

Two ways, in turn, of saving the same state: waiting until it is durable, and copying it for the background writer.
Prints JSON with the medians.  The copy is what a training step can wait for; the rest happens beside it.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from pggan.checkpoints.write import take_snapshot, write_checkpoint
from pggan.cli.compose import compose
from pggan.config import TrainConfig
from pggan.core.devices import choose_device
from pggan.core.validation import validated
from pggan.optim.state import State, new_state


def full_state(config: TrainConfig, device: torch.device) -> State:
    """A state as at the end of training: every weight has its moments."""
    architecture = config.model.architecture(config.schedule.final_resolution, channels=3, num_classes=0)
    state = new_state(architecture, config.optimizer, config.seed, device)
    for trainable in (state.g, state.d):
        for parameter in trainable.network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        trainable.prepare_update(0.0, torch.tensor(True, device=device))
        trainable.optimizer.step()
        trainable.finish_update(torch.tensor(True, device=device))
    return state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resolution", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--devices", default="auto")
    arguments = parser.parse_args()
    config = validated(TrainConfig, compose("train", [f"schedule.final_resolution={arguments.resolution}"]))
    device = choose_device(arguments.devices)
    state, phase = full_state(config, device), config.schedule.build().phases[-1]
    copying, writing = [], []
    snapshot = take_snapshot(state, phase, {"config": {}}, {})  # the first one also finds the memory for all
    with tempfile.TemporaryDirectory(prefix="pggan-saving-") as folder:
        for _ in range(arguments.rounds):
            began = time.perf_counter()
            snapshot = take_snapshot(state, phase, {"config": {}}, {}, memory=snapshot)
            copied = time.perf_counter()
            write_checkpoint(Path(folder), snapshot)
            copying.append(copied - began)
            writing.append(time.perf_counter() - copied)
    found = {
        "device": str(device),
        "threads": torch.get_num_threads(),
        "megabytes": round(snapshot.bytes / 1e6, 1),
        "seconds_stalled": round(statistics.median(copying), 3),
        "seconds_in_background": round(statistics.median(writing), 3),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
