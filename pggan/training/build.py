"""Builds the trainer of a run: networks, optimizer state and gradient reducer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch

from pggan.core.architecture import Architecture, Precision
from pggan.core.devices import DTYPES, precision_on
from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup
from pggan.losses.ada import TARGET, AdaptiveP
from pggan.losses.base import Loss
from pggan.networks.layers import ComputeOptions
from pggan.ops import fused
from pggan.optim.batch_partition import BatchPartition
from pggan.optim.reducer import AllReduce, GradientReducer
from pggan.optim.state import State, new_state
from pggan.training.trainer import Trainer

# These modules are imported only if needed: DGC for gradients.name=dgc, and ELASTIC for elastic=true.
DGC, ELASTIC = "pggan.optim.dgc:DgcReducer", "pggan.optim.elastic:ElasticReducer"


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """The settings of a trainer, without the architecture of G and D."""

    loss: Loss
    ada_rampup_images: int | None = None  # None switches ADA off
    precision: Precision = Precision.fp32
    seed: int = 0
    gradients: Mapping[str, Any] = field(default_factory=lambda: {"name": "fp32"})  # keys of configs/gradients/*.yaml
    elastic: bool = False
    elastic_chunks: int = 4
    micro_batch_size: int | None = None
    reference: bool = False  # whether to use plain PyTorch instead of all fast operations
    cuda_graphs: bool = True

    def partition(self, stddev_group: int, batches: Iterable[int], world_size: int, rank: int = 0) -> BatchPartition:
        """Build the `BatchPartition` of `rank`; raises UserError if one of `batches` can't be divided among ranks."""
        size, chunks = self.micro_batch_size, self.elastic_chunks
        partition = BatchPartition(rank, world_size, stddev_group, self.elastic, size, chunks)
        for batch in batches:
            partition.require_enough(batch)
        return partition


def build_trainer(
    settings: TrainerSettings, architecture: Architecture, phases: Sequence[Phase], group: ProcessGroup
) -> Trainer:
    """Build this rank's trainer for `phases`; raises UserError if a batch size can't be divided among the ranks."""
    device, precision = group.device, precision_on(group.device, settings.precision)
    group.require_same({"precision (of precision=auto)": precision}, "Give all ranks precision=fp16.")
    dtype, batches = DTYPES.get(precision), {phase.batch for phase in phases}
    partition = settings.partition(architecture.stddev_group, batches, group.world_size, group.rank)
    state = new_state(architecture, settings.seed, device, half=dtype is torch.float16)
    if settings.ada_rampup_images is not None:
        target = settings.loss.mean_sign(TARGET)
        state.d.adaptive_p = AdaptiveP(device, target=target, rampup_images=settings.ada_rampup_images)
    if architecture.features is not None:
        projected: Any = state.d.network
        projected.set_backbone(dtype)
    parts = batches if group.world_size > 1 else ()
    indices = {batch: torch.from_numpy(partition.indices(batch)).to(device) for batch in parts}
    reducer = build_reducer(settings, state, group, partition)
    return Trainer(
        state,
        settings.loss,
        ComputeOptions(dtype=dtype, reference=settings.reference),
        reducer=reducer,
        indices=indices.get,
        micro_batch_size=partition.micro_batch_size,
        scalars_as_tensors=device.type == "cuda",
        capture=device.type == "cuda" and settings.cuda_graphs and not reducer.has_moments,
    )


def missing(device: torch.device) -> list[str]:
    """List what `device` lacks for fast training, as sentences to show to the user."""
    if device.type != "cuda":
        has_driver = not torch.cuda.is_available() and Path("/proc/driver/nvidia/version").exists()
        return ["Training uses no GPU: there is an NVIDIA driver, but it may be too old for PyTorch."] * has_driver
    no_bf16, reason = not torch.cuda.is_bf16_supported(including_emulation=False), fused.problem()
    found = ["This GPU can't compute in bf16: precision=auto uses fp16, and precision=bf16 would be slow."] * no_bf16
    return found if reason is None else [*found, f"Training is slower without the fused Triton kernels.  {reason}"]


def build_reducer(
    settings: TrainerSettings, state: State, group: ProcessGroup, partition: BatchPartition
) -> GradientReducer:
    """Build the reducer that sums the gradients of all ranks."""
    if settings.elastic:
        return resolve_name(ELASTIC)(group, partition)  # type: ignore[no-any-return]
    if group.world_size == 1:
        return GradientReducer()
    options = dict(settings.gradients)
    if (name := options.pop("name")) == "dgc":
        return resolve_name(DGC)(group, state, **options)  # type: ignore[no-any-return]
    return AllReduce(group, torch.bfloat16 if name == "bf16" else torch.float32)
