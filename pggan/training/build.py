"""Builds a trainer from a configuration: networks, state, gradient reducer.  The configuration stops here."""

from collections.abc import Iterable, Sequence
from pkgutil import resolve_name
from typing import Any

import torch

from pggan.config.train import DgcConfig, Kernels, Switch, TrainerConfig
from pggan.core.architecture import Architecture, Precision
from pggan.core.errors import UserError
from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup
from pggan.losses import build_loss
from pggan.losses.ada import Ada, AdaptiveP
from pggan.networks.layers import ComputeOptions
from pggan.optim.batch_partition import BatchPartition
from pggan.optim.reducer import AllReduce, ElasticReducer, GradientReducer
from pggan.optim.state import State, new_state
from pggan.training.precision import DTYPES, precision_on
from pggan.training.trainer import Trainer

DGC = "pggan.optim.dgc:DgcReducer"  # imported by runs that compress gradients


def build_trainer(
    config: TrainerConfig,
    architecture: Architecture,
    phases: Sequence[Phase],
    group: ProcessGroup,
) -> Trainer:
    """A trainer with a new state, for steps of `phases` on this rank.

    Raises UserError for what the device can't do, and for batches that can't be divided.
    """
    device, precision = group.device, agreed_precision(config.precision, group)
    require_device(config, device)
    loss, augmentation, dtype = build_loss(vars(config.loss)), build_augmentation(config), DTYPES.get(precision)
    partition = build_partition(config, (phase.batch for phase in phases), group.world_size, group.rank)
    state = new_state(architecture, config.seed, device, half=dtype is torch.float16)
    if augmentation is not None and augmentation.p is None:
        target = loss.mean_sign(augmentation.target)
        state.d.adaptive_p = AdaptiveP(device, target=target, rampup_images=augmentation.rampup_images)
    if architecture.features is not None:
        projected: Any = state.d.network
        projected.set_backbone(dtype)
    batches = {phase.batch for phase in phases if group.world_size > 1}
    indices = {batch: torch.from_numpy(partition.indices(batch)).to(device) for batch in batches}
    sparse = sends_sparse_updates(config, group.world_size)
    return Trainer(
        state,
        loss,
        ComputeOptions(dtype=dtype, reference=config.compute.kernels is Kernels.reference),
        augmentation=augmentation,
        reducer=build_reducer(config, state, group, partition),
        indices=indices.get,
        micro_batch_size=partition.micro_batch_size,
        scalars_as_tensors=device.type == "cuda",
        capture=device.type == "cuda" and config.compute.cuda_graphs is not Switch.off and not sparse,
    )


def require_device(config: TrainerConfig, device: torch.device) -> None:
    """Raise UserError where `device` can't take steps as `config` asks for."""
    if config.precision is Precision.tf32 and device.type != "cuda":
        raise UserError(f"precision=tf32 does not exist on {device.type}.", "Set precision=fp32 or auto.")
    if config.compute.deterministic and device.type == "cuda" and config.augmentation.name != "none":
        problem = "compute.deterministic=true does not work with augmentation=ada on a GPU, whose pixels move."
        raise UserError(problem, "Set compute.deterministic=false.")


def agreed_precision(precision: Precision, group: ProcessGroup) -> Precision:
    """The precision of all ranks: for `auto`, fp16 on all where the GPU of one has no bf16."""
    found = [Precision(name) for name in group.all_gather_object(precision_on(group.device, precision))]
    return Precision.fp16 if Precision.fp16 in found else found[0]


def build_partition(
    config: TrainerConfig, batches: Iterable[int], world_size: int, rank: int = 0, key: str = "schedule.batch"
) -> BatchPartition:
    """The partition that `config` asks for; raises UserError when it can't divide one of `batches`, from `key`."""
    size, chunks = config.compute.micro_batch_size, config.distributed.elastic_chunks
    partition = BatchPartition(rank, world_size, config.model.stddev_group, config.elastic, size, chunks)
    for batch in batches:
        partition.require_enough(key, batch)
    return partition


def build_augmentation(config: TrainerConfig) -> Ada | None:
    """The augmentation that `augmentation=` asks for."""
    keys = vars(config.augmentation)
    return None if keys["name"] == "none" else Ada(**{key: keys[key] for key in keys if key != "name"})


def build_reducer(
    config: TrainerConfig, state: State, group: ProcessGroup, partition: BatchPartition
) -> GradientReducer:
    """The reducer that `gradients=` and `elastic=` ask for."""
    if config.elastic:
        return ElasticReducer(group, partition)
    if group.world_size == 1:
        return GradientReducer()
    if isinstance(config.gradients, DgcConfig):
        options = {key: value for key, value in vars(config.gradients).items() if key != "name"}
        reducer: GradientReducer = resolve_name(DGC)(group, state, **options)
        return reducer
    return AllReduce(group, torch.bfloat16 if config.gradients.name == "bf16" else torch.float32)


def sends_sparse_updates(config: TrainerConfig, world_size: int) -> bool:
    """Whether gradients are compressed: the gradient reducer makes the updates, each rank has a state of its own."""
    return config.gradients.name == "dgc" and world_size > 1
