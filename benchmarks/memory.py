"""What a process holds at most while it takes steps: `python -m benchmarks.memory --resolution 8 --batch 16`.

The trainer's steps and the reference steps, in processes of their own, in turn: largest resident memory in MiB, with
that of Python and PyTorch.  The networks are the paper's up to the resolution of `--top`.
"""

import argparse
import resource
import subprocess
import sys
from functools import partial

import torch

from benchmarks.reporting import report
from pggan.cli.compose import compose
from pggan.config import BenchConfig, Precision, TrainerConfig
from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.core.validation import validated
from pggan.performance.bench.steps import phase_of
from pggan.performance.bench.variants import REFERENCE, ReferenceVariant, TrainerVariant, Variant
from pggan.training.compute_options import configure_process

CPU = torch.device("cpu")
STEPS = 3  # the first makes the moments


def held(arguments: argparse.Namespace) -> float:
    """MiB that this process held at most, after steps of one variant."""
    configure_process(CPU, Precision.fp32)
    bench = validated(BenchConfig, compose("bench", []))
    config = TrainerConfig(model=bench.model, loss=bench.loss, precision=Precision.fp32)
    architecture = config.model.architecture(arguments.top, 3, num_classes=0)
    variant: Variant
    if arguments.variant == REFERENCE:
        variant = ReferenceVariant(config, architecture, CPU)
    else:
        variant = TrainerVariant(config, architecture, CPU, log=partial(print, file=sys.stderr))
    phase = phase_of(arguments.resolution, arguments.batch)
    variant.begin(phase)
    images = torch.rand(phase.batch, 3, phase.resolution, phase.resolution) * 2 - 1
    for number in range(STEPS):
        variant.step(phase, Reals(images, None, None), StepRng(0, number * phase.batch, CPU))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resolution", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--top", type=int, default=128, help="final resolution of the networks (default: 128)")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each (default: 3)")
    parser.add_argument("--variant", choices=("trainer", REFERENCE), help="only this one, in this process")
    arguments = parser.parse_args()
    if arguments.variant:
        print(held(arguments))
        return
    found: dict[str, list[int]] = {"trainer": [], REFERENCE: []}
    for _ in range(arguments.rounds):
        for variant, figures in found.items():
            command = [sys.executable, *sys.orig_argv[1:], "--variant", variant]
            done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - itself
            figures.append(round(float(done.stdout)))
    report({"resolution": arguments.resolution, "batch": arguments.batch, "held_mib": found}, None)


if __name__ == "__main__":
    main()
