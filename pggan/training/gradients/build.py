"""How gradients travel, by name: the choices of `gradients=`."""

from collections.abc import Mapping
from typing import Any

from pggan.config import OptimizerConfig, dgc_options
from pggan.distributed.process_group import World
from pggan.training.gradients.batch_partition import Division
from pggan.training.gradients.compression import WarmUp
from pggan.training.gradients.dgc import Compressed
from pggan.training.gradients.elastic import Sharded
from pggan.training.gradients.reducer import Dense, Exchange, Half
from pggan.training.gradients.shared_memory import SharedMemory, see_the_same_memory
from pggan.training.state import State


def compresses(gradients: Mapping[str, Any], world: World) -> bool:
    """Whether updates are made before they are sent: then players are given few entries of them."""
    return gradients["name"] == "dgc" and world.size > 1


def build_exchange(
    gradients: Mapping[str, Any], state: State, optimizer: OptimizerConfig, *, world: World, division: Division
) -> Exchange:
    """The exchange that `gradients` names; with one process and no shards, nothing is exchanged."""
    dgc = dgc_options(gradients, elastic=division.elastic)
    if division.elastic:
        return Sharded(world, division)
    if world.size == 1:
        return Exchange()
    if dgc is not None:
        warm_up = WarmUp(ratio=dgc.ratio, images=dgc.warm_up_images)
        return Compressed(world, state, optimizer, warm_up=warm_up, clip=dgc.clip)
    if gradients["name"] == "bf16":
        return Half(world)
    return SharedMemory(world) if see_the_same_memory(world) else Dense(world)
