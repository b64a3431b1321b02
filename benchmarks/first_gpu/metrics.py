"""Part 13: metrics on the device are those of the CPU, for the same generator and the same images."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.first_gpu.context import Context, Item, Judgement, in_new_process, train_config
from benchmarks.first_gpu.record import Figures
from pggan.checkpoints.generator_file import LoadedGenerator
from pggan.config import METRICS
from pggan.data.pyramid import ImagePyramid
from pggan.data.writer import write_pyramid
from pggan.distributed.process_group import ProcessGroup
from pggan.metrics.evaluate import evaluate
from pggan.metrics.extractors import load_extractor, pixel_extractor
from pggan.networks.features import efficientnet_lite0
from pggan.networks.features.backbone import LITE0
from pggan.networks.networks import Generator, initialize
from pggan.sampling.trained_generator import TrainedGenerator

# Rounding to 255 levels may turn a pixel in some thousand the other way, and sums of float32 differ by 1e-6: of numbers
# that are differences of larger ones, as KID is, that is up to a thousandth.
TOLERANCE = 0.01


def items(context: Context) -> Iterator[Item]:
    """All metrics at once, on both."""
    yield "metrics", lambda: compare(context)


def compare(context: Context) -> Figures:
    """The numbers on the CPU and on the device, by name."""
    side, count = (16, 24) if context.small else (128, 256)
    random, data = np.random.default_rng(0), context.folder / "of_metrics"
    write_pyramid(data, [random.integers(0, 256, (side, side, 3), np.uint8) for _ in range(count)], {"kind": "random"})
    devices = {"cpu": "cpu", "device": context.device.type}
    return {
        name: in_new_process(values_on, kind, data, count, context.folder / f"cache_{name}")
        for name, kind in devices.items()
    }


def values_on(kind: str, data: Path, count: int, cache: Path) -> Figures:
    """The numbers of all metrics of an untrained generator beside the images `data`, on a device of this kind."""
    os.environ["XDG_CACHE_HOME"] = str(cache)  # or the features of reals would be those of the other device
    pyramid, device = ImagePyramid(data), torch.device(kind)
    network = Generator(train_config("model.fmap_max=64").model.architecture(pyramid.resolution, 3, 0))
    initialize(network, 0, "generator")
    generator = TrainedGenerator(LoadedGenerator(network.to(device), pyramid.resolution, 1.0, 0))
    return evaluate(
        generator,
        generator.settings(),
        pyramid,
        METRICS,
        extractor=load_extractor(LITE0, None, device) if efficientnet_lite0.is_installed() else pixel_extractor(),
        count=count,
        first_seed=0,
        group=ProcessGroup.single_process(device),
        mirror=False,
    ).values


def judge(context: Context, found: dict[str, Figures]) -> Judgement:
    """The largest difference, as a share of the number; shares of images may differ by one image."""
    there, here = found["metrics"]["cpu"], found["metrics"]["device"]
    differences = {
        name: abs(here[name] - value) / max(abs(value), 1 / int(name.rpartition("-")[2]) / TOLERANCE)
        for name, value in there.items()
    }
    worst = max(differences, key=differences.__getitem__)
    measured = f"{len(there)} numbers, {worst} {here[worst]:.5g} and {there[worst]:.5g} on the CPU"
    return Judgement(measured, f"a difference of {TOLERANCE:.0%} at most", differences[worst] <= TOLERANCE)
