"""One state for all processes: that of the first."""

import torch
from torch import Tensor

from pggan.checkpoints.read import Checkpoint, Parts
from pggan.distributed.process_group import World
from pggan.training.gradients.dgc import KEPT
from pggan.training.gradients.reducer import Exchange
from pggan.training.state import State


def share_state(state: State, world: World) -> None:
    """Make `state` that of the first process, bit by bit, in all of them."""
    if world.size == 1:
        return
    parts, clock = share_parts(state.tensors(), world), world.tell([state.images, state.phase_index])
    if not world.is_first:
        state.load_tensors(parts)
        state.images, state.phase_index = clock


def share_kept(checkpoint: Checkpoint | None, exchange: Exchange, world: World) -> None:
    """Give every process's exchange what it kept when `checkpoint`, of the first process, was made."""
    there = checkpoint is not None and KEPT in checkpoint.parts
    with world.together():
        parts = {KEPT: checkpoint.load(KEPT)} if there and checkpoint is not None else {}
    exchange.load_parts(share_parts(parts, world))


def share_parts(parts: Parts, world: World) -> Parts:
    """The tensors of the first process, whose own are given, in all of them."""
    forms = {
        part: {name: [list(tensor.shape), str(tensor.dtype), tensor.device.type] for name, tensor in tensors.items()}
        for part, tensors in parts.items()
    }
    forms = world.tell(forms)
    if not world.is_first:
        parts = {part: {name: _empty(*form) for name, form in tensors.items()} for part, tensors in forms.items()}
    world.from_first([tensor for tensors in parts.values() for tensor in tensors.values()])
    return parts


def _empty(shape: list[int], dtype: str, device: str) -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device=device)
