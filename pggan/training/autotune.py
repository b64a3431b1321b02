"""The convolution methods of a run: as at its checkpoint, as measured on this machine before, or measured now."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pggan.config import ComputeConfig, ConvolutionMethod, TrainerConfig
from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup
from pggan.networks.convolution import WIDE, Method
from pggan.networks.method_table import ConvolutionShape, MethodTable, ShapeRecorder
from pggan.networks.networks import use_options
from pggan.networks.numerics import ComputeOptions
from pggan.optim.batch_partition import BatchPartition
from pggan.training.autotune_cache import Measurements, cache_file, cached_measurements, keep
from pggan.training.autotune_timing import fastest, measure, sample_of
from pggan.training.compute_options import METHODS
from pggan.training.inputs import micro_batch_indices
from pggan.training.step import Trainer

# Feature maps: of 36 shapes with 64, PyTorch's own convolution was the fastest for all, with AVX2 and with AVX-512.
NARROWEST = WIDE
# Of a start.  Shapes that are left go by the heuristic for good: the same command makes the same run again.
MAX_SECONDS = 20.0

CPU = torch.device("cpu")


class MethodChoice(NamedTuple):
    """Methods that were chosen."""

    method_table: MethodTable
    summary: str  # in words; empty where nothing was to choose


def autotune_convolutions(
    config: TrainerConfig,
    trainer: Trainer,
    phases: Iterable[Phase],
    group: ProcessGroup,
    *,
    recorded: Any = None,
) -> str:
    """Let `trainer` take the fastest methods here in steps of `phases`; returns `MethodChoice.summary`.

    Whoever builds a trainer to train, or to see how long that takes, calls this on all ranks of `group`.
    Args: recorded: as of `autotune`.
    """
    partition = BatchPartition.of(config, (), group.world_size, group.rank)
    choice = autotune(config, trainer, [*phases], partition, group, recorded=recorded)
    trainer.options = replace(trainer.options, method_table=choice.method_table)
    return choice.summary


def autotune(
    config: TrainerConfig,
    trainer: Trainer,
    phases: Sequence[Phase],
    partition: BatchPartition,
    group: ProcessGroup,
    *,
    recorded: Any = None,
) -> MethodChoice:
    """The methods for the steps of `phases`, the same on all ranks; called by all of them.

    Args: recorded: what a checkpoint notes of them, names by names of shapes: they are taken again.
    """
    options, architecture = trainer.options, trainer.state.g_ema.architecture
    wide = [level for level in architecture.resolutions if architecture.width(level) >= NARROWEST]
    if not wide or not autotunes(config.compute, options, group.device):
        return MethodChoice(MethodTable(), "")
    shapes = wide_shapes(trainer, passes_of(phases, partition, trainer, highest=max(wide)))
    names, summary = {}, ""
    if group.is_main:
        methods, summary = _choose(shapes, recorded if isinstance(recorded, dict) else {})
        names = {str(shape): method.name for shape, method in methods.items()}
    names = group.broadcast_object(names)
    return MethodChoice(MethodTable({shape: METHODS[names[str(shape)]] for shape in shapes}), summary)


def autotunes(config: ComputeConfig, options: ComputeOptions, device: torch.device) -> bool:
    """Whether steps on `device` take the methods that were measured."""
    asked = config.convolution is ConvolutionMethod.auto and not options.compiled
    return asked and device.type == "cpu"


def passes_of(phases: Iterable[Phase], partition: BatchPartition, trainer: Trainer, highest: int) -> dict[int, int]:
    """Numbers of images that passes of any rank have, each with the level that they reach, at most `highest`."""
    found: dict[int, int] = {}
    for phase in phases:
        size = trainer.micro_batch_sizes.get((phase.resolution, phase.batch), trainer.options.micro_batch_size)
        for rank in range(partition.world_size):
            count, level = len(replace(partition, rank=rank).indices(phase.batch)), min(phase.resolution, highest)
            for images in map(len, micro_batch_indices(count, size or count, partition.stddev_group, CPU)):
                found[images] = max(level, found.get(images, 0))
    return found


def wide_shapes(trainer: Trainer, passes: Mapping[int, int]) -> list[ConvolutionShape]:
    """The shapes of the 3x3 convolutions of G and D but the narrow ones, those of low resolutions first.

    Args: passes: the level of the passes of so many images; D also sees reals and fakes as one batch.
    """
    g, d, recorder = trainer.state.g.network, trainer.state.d.network, ShapeRecorder()
    options, num_classes = replace(trainer.options, method_table=recorder), g.architecture.num_classes
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), use_options(g, options), use_options(d, options):
        for count, level in passes.items():
            one_hot = torch.empty(count, num_classes) if num_classes else None
            images = g(torch.empty(count, g.architecture.latent_size), one_hot, level)
            d(images, level)
            d(torch.cat([images, images]), level, sub_batches=2)
    wide = [shape for shape in recorder.shapes if min(shape.inputs, shape.outputs) >= NARROWEST]
    return sorted(wide, key=lambda shape: (shape.height, shape.images, str(shape)))


def _choose(
    shapes: Sequence[ConvolutionShape], recorded: Mapping[str, Any]
) -> tuple[dict[ConvolutionShape, Method], str]:
    """The method of each shape, and a summary."""
    known, new, began, late = cached_measurements(), Measurements(), time.perf_counter(), 0
    chosen: dict[ConvolutionShape, Method] = {}
    for shape in shapes:
        possible = [method for method in shape.methods() if method.name == recorded.get(str(shape))]
        if possible:
            (chosen[shape],) = possible
            continue
        sample = sample_of(shape)
        if str(sample) not in known:
            in_time = time.perf_counter() - began < MAX_SECONDS
            known[str(sample)] = new[str(sample)] = measure(sample) if in_time else {}
            late += not in_time
        # D sees reals and fakes as one batch of twice the size, with the same kernel.
        half = shape._replace(images=shape.images // 2)
        chosen[shape] = fastest(shape, known[str(sample)], prepared=chosen.get(half))
    spent, kept = time.perf_counter() - began, keep(new)
    return chosen, _summary(chosen, len(new) - late, late, spent, kept=kept)


def _summary(chosen: Mapping[ConvolutionShape, Method], measured: int, late: int, spent: float, *, kept: bool) -> str:
    counts = Counter(method.name for method in chosen.values()).most_common()
    other = sum(method is not shape.methods()[0] for shape, method in chosen.items())
    words = [f"{', '.join(f'{count} {name}' for name, count in counts)}; {other} of {len(chosen)} unlike the heuristic"]
    if measured:
        where = f"kept in {cache_file()}" if kept else f"not kept: {cache_file().parent} can't be written to"
        words.append(f"{measured} measured in {spent:.1f} s, {where}")
    if late:
        words.append(f"{late} more by the heuristic, as {MAX_SECONDS:.0f} s are over")
    return "; ".join(words)
