"""Where a run starts: at a checkpoint, with the weights of another run, or from nothing."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from pggan.checkpoints.generator_file import load_generator
from pggan.checkpoints.read import NETWORKS, Checkpoint, checkpoints_of, has_checkpoints, resolve_checkpoint
from pggan.core.architecture import Architecture
from pggan.core.errors import UserError
from pggan.core.schedule import Schedule
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.reducer import EXTRA_STATE, GradientReducer
from pggan.optim.state import State, StateDicts

# Keys that must be as in the checkpoint unless `allow_changes` names them, and why.
REFUSED = {
    "seed": "from here on other images would be drawn, some of them a second time in this epoch",
    "loss.name": "under another loss the discriminator's scores mean something else",
    "data": "the images are other ones than those it was trained on",
    "schedule": "the schedule says something else about the images that were shown already",
}

# Values that two networks must share for the weights of one to fit the other.
KIND_FIELDS = ("latent_size", "fmap_base", "fmap_decay", "fmap_max", "resampling", "blur", "stem")


def find_resume_point(resume: str, run_dir: Path) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint that `resume` (auto, never, or the path of a run or checkpoint) asks for, and lines to log.

    Raises UserError when there is none at that path, when `run_dir` has checkpoints that it must not have, or when
    none of its checkpoints is valid.
    """
    has_own = bool(checkpoints_of(run_dir))
    if resume == "never" and has_own:
        remedy = "Choose another run_dir=, or resume=auto."
        raise UserError(f"resume=never does not allow run_dir={run_dir}, which holds a run.", remedy)
    if resume in ("auto", "never"):
        return resolve_checkpoint(run_dir, "run_dir") if has_own else (None, [])
    if not has_own:
        return resolve_checkpoint(Path(resume), "resume")
    own, notes = resolve_checkpoint(run_dir, "run_dir")
    named = Path(resume).resolve()  # it may be gone by now
    if named.parent != (run_dir / "checkpoints").resolve():
        return own, [*notes, f"Not starting from resume={resume} again: this run has checkpoints of its own."]
    if named != own.directory.resolve():
        remedy = "To go back to it, give a new run_dir= as well: what came after it stays as it is."
        raise UserError(f"resume={resume} is not the newest checkpoint of {run_dir}.", remedy)
    return own, notes


def check_networks(checkpoint: Checkpoint, architecture: Architecture) -> None:
    """Raise UserError unless the networks of `checkpoint` have this `architecture`."""
    if found := list(architecture.differences(checkpoint.architecture)):
        alone = f"pggan train run_dir={checkpoint.directory.parent.parent}, without other keys, resumes it as it was."
        remedy = f"{alone} For other networks, choose a new run_dir=; init_from= takes over what fits."
        raise UserError(f"{checkpoint.directory} holds other networks than are asked for ({'; '.join(found)}).", remedy)


def check_resumable(
    checkpoint: Checkpoint, changed: dict[str, str], allowed: Sequence[str], *, schedule: Schedule, fingerprint: str
) -> list[str]:
    """The changes since `checkpoint`, as lines to log; raises UserError when some of it is refused.

    Args: changed: 'key: before -> now' by key; allowed: names in REFUSED; schedule: as it is planned now;
    fingerprint: of the data now.
    """
    header, shown = checkpoint.header, schedule.at(max(checkpoint.images - 1, 0))
    kinds = {
        "seed": "seed" in changed,
        "loss.name": "loss.name" in changed,
        "data": header.get("data") not in (None, fingerprint),
        "schedule": (shown.resolution, shown.alpha) != (header["resolution"], header["alpha"]),
    }
    if refused := [kind for kind, differs in kinds.items() if differs and kind not in allowed]:
        why = "; ".join(f"{kind}: {REFUSED[kind]}" for kind in refused)
        lines = "".join(f"\n    {line}" for line in changed.values())
        problem = f"{checkpoint.directory} was trained with another configuration ({why}).{lines}"
        remedy = f"Give the values from before, or a new run_dir=; or add 'allow_changes=[{','.join(refused)}]'."
        raise UserError(problem, remedy)
    return [f"Changed since then: {line}" for line in changed.values()]


def transfer(path: str, state: State) -> Iterator[str]:
    """Take over the weights of the run, checkpoint or generator file at `path` into a new `state`; gives lines to log.

    Layers that `path` has not stay new: of a higher resolution, of other image channels or classes.
    """
    state_dicts = load_weights(path, state.g_ema.architecture)
    yield f"Weights taken over from {path}; nothing else: optimizers, images shown and schedule start anew."
    networks = {"generator": state.g.network, "discriminator": state.d.network, "generator_ema": state.g_ema}
    for name, network in networks.items():
        own, theirs = network.state_dict(), state_dicts.get(name, {})
        fitting = {key: value for key, value in theirs.items() if key in own and own[key].shape == value.shape}
        network.load_state_dict({**own, **fitting})
        yield f"  {name}: {len(fitting)} of {len(own)} tensors"


def load_weights(path: str, architecture: Architecture) -> StateDicts:
    """The weights at `path` by network; a generator file has the averaged generator only, which then serves as both.

    Raises UserError when there is nothing there, or its networks are of another kind than `architecture`.
    """
    directory = Path(path)
    if has_checkpoints(directory):
        checkpoint, _ = resolve_checkpoint(directory, "init_from")
        state_dicts = {name: checkpoint.load(name) for name in NETWORKS}
        theirs = checkpoint.architecture
    else:
        network = load_generator(path, torch.device("cpu"), "init_from").network
        state_dicts = {"generator": network.state_dict(), "generator_ema": network.state_dict()}
        theirs = network.architecture
    if found := [line for line in architecture.differences(theirs) if line.split(":")[0] in KIND_FIELDS]:
        problem = f"init_from={path} has networks of another kind ({'; '.join(found)})."
        remedy = "Give the model keys of that run. A generator of another program, whose stem differs, stays as it is."
        raise UserError(problem, remedy)
    return state_dicts


def broadcast_state(state: State, reducer: GradientReducer, checkpoint: Checkpoint | None, group: ProcessGroup) -> None:
    """Copy rank 0's `state` to all ranks, bit by bit; reducers get the extra state in rank 0's `checkpoint`."""
    tensors: StateDicts = {}
    with group.collective_errors():
        if group.is_main:
            tensors = {**state.state_dict(), EXTRA_STATE: {} if checkpoint is None else checkpoint.load(EXTRA_STATE)}
    forms = {
        component: {name: (value.shape, value.dtype, value.device.type) for name, value in named.items()}
        for component, named in tensors.items()
    }
    forms, state.images, state.phase_index = group.broadcast_object((forms, state.images, state.phase_index))
    if not group.is_main:
        tensors = {
            component: {name: torch.empty(shape, dtype=dtype, device=device) for name, (shape, dtype, device) in named}
            for component, named in ((component, form.items()) for component, form in forms.items())
        }
    group.broadcast([value for named in tensors.values() for value in named.values()])
    extra = tensors.pop(EXTRA_STATE)
    if not group.is_main:
        state.load_state_dict(tensors)
    reducer.load_extra_state({EXTRA_STATE: extra} if extra else {})
