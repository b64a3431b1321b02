"""How gradients travel, by name: the choices of `gradients=`."""

from typing import Any

from pggan.distributed.division import Division
from pggan.distributed.exchange import Dense, Exchange, Half
from pggan.distributed.shards import Sharded
from pggan.distributed.world import World


def build_exchange(options: dict[str, Any], world: World, division: Division) -> Exchange:
    """The exchange `options["name"]`; with one process and no shards, nothing is exchanged."""
    if division.elastic:
        return Sharded(world, division)
    if world.size == 1:
        return Exchange()
    return {"dense": Dense, "bf16": Half}[options["name"]](world)
