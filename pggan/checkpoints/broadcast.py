"""One state for all ranks: that of rank 0."""

import torch

from pggan.checkpoints.read import Checkpoint
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.dgc import EXTRA_STATE
from pggan.optim.reducer import GradientReducer, Parts
from pggan.optim.state import State


def broadcast_state(state: State, reducer: GradientReducer, checkpoint: Checkpoint | None, group: ProcessGroup) -> None:
    """Make `state` that of rank 0, bit by bit, on all ranks; reducers get the extra state in rank 0's `checkpoint`."""
    if group.world_size > 1:
        parts = _broadcast_parts(state.state_dict(), group)
        images, phase_index = group.broadcast_object([state.images, state.phase_index])
        if not group.is_main:
            state.load_state_dict(parts)
            state.images, state.phase_index = images, phase_index
    extra: Parts = {}
    with group.collective_errors():
        if checkpoint is not None and f"{EXTRA_STATE}.safetensors" in checkpoint.header["files"]:
            extra = {EXTRA_STATE: checkpoint.load(EXTRA_STATE)}
    reducer.load_extra_state(_broadcast_parts(extra, group))


def _broadcast_parts(parts: Parts, group: ProcessGroup) -> Parts:
    """The tensors of rank 0, on all ranks; `parts` are those of this rank, and only rank 0's count."""
    forms = group.broadcast_object(
        {
            part: {name: [list(value.shape), str(value.dtype), value.device.type] for name, value in tensors.items()}
            for part, tensors in parts.items()
        }
    )
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
