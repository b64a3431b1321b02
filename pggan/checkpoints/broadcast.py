"""One state for all ranks: that of rank 0."""

import torch

from pggan.checkpoints.read import Checkpoint
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.dgc import EXTRA_STATE
from pggan.optim.reducer import GradientReducer
from pggan.optim.state import State, StateDicts


def broadcast_state(state: State, reducer: GradientReducer, checkpoint: Checkpoint | None, group: ProcessGroup) -> None:
    """Make `state` that of rank 0, bit by bit, on all ranks; reducers get the extra state in rank 0's `checkpoint`."""
    if group.world_size > 1:
        state_dicts = _broadcast_state_dicts(state.state_dict(), group)
        images, phase_index = group.broadcast_object([state.images, state.phase_index])
        if not group.is_main:
            state.load_state_dict(state_dicts)
            state.images, state.phase_index = images, phase_index
    extra: StateDicts = {}
    with group.collective_errors():
        if checkpoint is not None and f"{EXTRA_STATE}.safetensors" in checkpoint.header["files"]:
            extra = {EXTRA_STATE: checkpoint.load(EXTRA_STATE)}
    reducer.load_extra_state(_broadcast_state_dicts(extra, group))


def _broadcast_state_dicts(state_dicts: StateDicts, group: ProcessGroup) -> StateDicts:
    """The tensors of rank 0, on all ranks; `state_dicts` are those of this rank, and only rank 0's count."""
    forms = group.broadcast_object(
        {
            component: {
                name: [list(value.shape), str(value.dtype), value.device.type] for name, value in tensors.items()
            }
            for component, tensors in state_dicts.items()
        }
    )
    if not group.is_main:
        state_dicts = {
            component: {
                name: torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device=device)
                for name, (shape, dtype, device) in tensors.items()
            }
            for component, tensors in forms.items()
        }
    group.broadcast([tensor for tensors in state_dicts.values() for tensor in tensors.values()])
    return state_dicts
