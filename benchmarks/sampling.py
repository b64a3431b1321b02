"""How long `pggan sample` takes to draw its images, without its start.

    python -m benchmarks.sampling --seeds 100 --resolution 64 --fmap-base 2048 --out benchmarks/results/sampling.json

Weights are random: the time does not depend on them.  Figures are medians of the rounds; CPU seconds, which other
processes change less, are those of all threads together.
"""

import argparse
import time
from pathlib import Path
from statistics import median

import torch

from benchmarks.reporting import report
from pggan.checkpoints.generator_file import LoadedGenerator
from pggan.core.architecture import Architecture, Resampling
from pggan.networks.networks import Generator, initialize
from pggan.sampling.trained_generator import TrainedGenerator


def untrained(resolution: int, fmap_base: int, fmap_max: int) -> TrainedGenerator:
    """A generator with random weights, otherwise as the official configuration has it."""
    architecture = Architecture(
        resolution=resolution,
        channels=3,
        num_classes=0,
        latent_size=512,
        fmap_base=fmap_base,
        fmap_decay=1.0,
        fmap_max=fmap_max,
        stddev_group=4,
        resampling=Resampling.fused,
    )
    network = Generator(architecture)
    initialize(network, 0, "generator")
    return TrainedGenerator(LoadedGenerator(network.requires_grad_(False), resolution, 1.0, 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--resolution", type=int, default=64)
    parser.add_argument("--fmap-base", type=int, default=8192)
    parser.add_argument("--fmap-max", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    generator = untrained(arguments.resolution, arguments.fmap_base, arguments.fmap_max)
    latents, settings = generator.latents(f"0-{arguments.seeds - 1}"), generator.settings()
    seconds, cpu_seconds = [], []
    for _ in range(arguments.rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        for _image in generator.stream(latents, settings):
            pass
        seconds.append(time.perf_counter() - wall)
        cpu_seconds.append(time.process_time() - cpu)
    figures = {"seconds": median(seconds), "cpu_seconds": median(cpu_seconds), "threads": torch.get_num_threads()}
    asked = {name: value for name, value in vars(arguments).items() if name != "out"}
    report(asked | figures, arguments.out)


if __name__ == "__main__":
    main()
