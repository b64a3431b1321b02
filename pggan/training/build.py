"""Builds a trainer from a configuration: networks, state, gradient reducer.  No other place does."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from pggan.config import DgcConfig, Precision, TrainerConfig
from pggan.core.architecture import Architecture
from pggan.core.formatting import Log
from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup
from pggan.networks.features.backbone import load_backbone
from pggan.networks.features.discriminator import ProjectedDiscriminator
from pggan.optim.batch_partition import BatchPartition
from pggan.optim.dgc import DgcOptions, DgcReducer
from pggan.optim.reducer import AllReduce, ElasticReducer, GradientReducer
from pggan.optim.state import State
from pggan.optim.updates import AdamOptions
from pggan.training.compute_options import precision_on
from pggan.training.trainer import Trainer
from pggan.training.trainer_factory import TrainerFactory


def build_trainer(
    config: TrainerConfig,
    architecture: Architecture,
    phases: Sequence[Phase],
    group: ProcessGroup,
    *,
    log: Log = print,
) -> Trainer:
    """A trainer with a new state, for steps of `phases` on this rank.

    Args: log: called with what does not work here.
    Raises UserError for what the device can't do, and for batches that can't be divided.
    """
    device = group.device
    config = replace(config, precision=agreed_precision(config.precision, group))
    factory = TrainerFactory.of(config, device, group.world_size)
    partition = BatchPartition.of(config, (phase.batch for phase in phases), group.world_size, group.rank)
    state = factory.new_state(architecture, config.seed, device)
    if isinstance(state.d.network, ProjectedDiscriminator):
        state.d.network.set_backbone(load_backbone(), factory.options.dtype)
    reducer = build_reducer(config, state, group, partition)
    batches = {phase.batch for phase in phases if group.world_size > 1}
    indices = {batch: torch.from_numpy(partition.indices(batch)).to(device) for batch in batches}
    return factory.trainer(
        state,
        reducer=reducer,
        indices=indices.get,
        chunk_size=partition.micro_batch_size,
        reset_at_phase=config.optimizer.reset_at_phase,
        scalars_as_tensors=device.type == "cuda",
        any_rank=lambda here: any(group.all_gather_object(here)),
        log=log,
    )


def agreed_precision(precision: Precision, group: ProcessGroup) -> Precision:
    """The precision of all ranks: for `auto`, fp16 on all where the GPU of one has no bf16."""
    found = [Precision(name) for name in group.all_gather_object(precision_on(group.device, precision))]
    return Precision.fp16 if Precision.fp16 in found else found[0]


def build_reducer(
    config: TrainerConfig, state: State, group: ProcessGroup, partition: BatchPartition
) -> GradientReducer:
    """The reducer that `gradients=` and `elastic=` ask for."""
    dgc = config.gradients if isinstance(config.gradients, DgcConfig) else None
    if config.elastic:
        return ElasticReducer(group, partition)
    if group.world_size == 1:
        return GradientReducer()
    if dgc is not None:
        adam = AdamOptions(config.optimizer.beta1, config.optimizer.beta2, config.optimizer.epsilon)
        options = {key: value for key, value in vars(dgc).items() if key != "name"}
        return DgcReducer(group, state, adam, DgcOptions(**options))
    return AllReduce(group, torch.bfloat16 if config.gradients.name == "bf16" else torch.float32)
