"""One state for all processes: that of the first."""

import torch

from pggan.distributed.world import World
from pggan.state import State


def share_state(state: State, world: World) -> None:
    """Make `state` that of the first process, bit by bit, in all of them."""
    if world.size == 1:
        return
    parts = state.tensors()
    forms = {
        part: {name: [list(tensor.shape), str(tensor.dtype), tensor.device.type] for name, tensor in tensors.items()}
        for part, tensors in parts.items()
    }
    clock, forms = world.tell([[state.images, state.phase_index], forms])
    if not world.is_first:
        parts = {
            part: {
                name: torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device=device)
                for name, (shape, dtype, device) in tensors.items()
            }
            for part, tensors in forms.items()
        }
    world.from_first([tensor for tensors in parts.values() for tensor in tensors.values()])
    if not world.is_first:
        state.load_tensors(parts)
        state.images, state.phase_index = clock
