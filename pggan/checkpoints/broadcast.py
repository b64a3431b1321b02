"""One state for all ranks: that of rank 0."""

import torch

from pggan.checkpoints.read import Checkpoint
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.dgc import EXTRA_STATE
from pggan.optim.reducer import GradientReducer, Parts
from pggan.optim.state import State


def broadcast_state(state: State, group: ProcessGroup) -> None:
    """Make `state` that of rank 0, bit by bit, on all ranks."""
    if group.world_size > 1:
        parts = _broadcast_parts(state.tensors(), group)
        images, phase_index = group.broadcast_object([state.images, state.phase_index])
        if not group.is_main:
            state.load_tensors(parts)
            state.images, state.phase_index = images, phase_index


def broadcast_extra_state(checkpoint: Checkpoint | None, reducer: GradientReducer, group: ProcessGroup) -> None:
    """Give every rank's reducer the extra state that `checkpoint`, of rank 0, holds."""
    parts: Parts = {}
    with group.collective_errors():
        if checkpoint is not None and EXTRA_STATE in checkpoint.parts:
            parts = {EXTRA_STATE: checkpoint.load(EXTRA_STATE)}
    reducer.load_extra_state(_broadcast_parts(parts, group))


def _broadcast_parts(parts: Parts, group: ProcessGroup) -> Parts:
    """The tensors of rank 0, whose own are given, on all ranks."""
    forms = {
        part: {name: [list(tensor.shape), str(tensor.dtype), tensor.device.type] for name, tensor in tensors.items()}
        for part, tensors in parts.items()
    }
    forms = group.broadcast_object(forms)
    if not group.is_main:
        parts = {
            part: {
                name: torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device=device)
                for name, (shape, dtype, device) in tensors.items()
            }
            for part, tensors in forms.items()
        }
    group.broadcast([tensor for tensors in parts.values() for tensor in tensors.values()])
    return parts
