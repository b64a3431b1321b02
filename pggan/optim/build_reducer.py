"""The gradient reducers by name: the choices of `gradients=`."""

from pggan.config import TrainerConfig, dgc_options
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.batch_partition import BatchPartition
from pggan.optim.compression import Warmup
from pggan.optim.dgc import DgcReducer
from pggan.optim.elastic import ElasticReducer
from pggan.optim.reducer import AllReduceBf16, AllReduceFp32, GradientReducer
from pggan.optim.shared_memory import SharedMemoryReducer, shares_memory
from pggan.optim.state import State


def sends_sparse_updates(config: TrainerConfig, group: ProcessGroup) -> bool:
    """Whether the gradient reducer makes the updates, as sparse vectors that the optimizers apply."""
    return config.gradients["name"] == "dgc" and group.world_size > 1


def build_reducer(
    config: TrainerConfig, state: State, group: ProcessGroup, partition: BatchPartition
) -> GradientReducer:
    """The reducer that `gradients=` and `elastic=` ask for."""
    dgc = dgc_options(config.gradients, elastic=config.elastic)
    if config.elastic:
        return ElasticReducer(group, partition)
    if group.world_size == 1:
        return GradientReducer()
    if dgc is not None:
        warmup = Warmup(ratio=dgc.ratio, images=dgc.warmup_images)
        return DgcReducer(group, state, config.optimizer, warmup, dgc.clip)
    if config.gradients["name"] == "bf16":
        return AllReduceBf16(group)
    return SharedMemoryReducer(group) if shares_memory(group) else AllReduceFp32(group)
