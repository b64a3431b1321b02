"""Resume a run from a checkpoint, or start a run with the weights of another run."""

from collections.abc import Iterator, Sequence
from math import sqrt
from pathlib import Path

import torch
from torch import Tensor

from pggan.checkpoints.generator_file import generator_path, load_generator, stored_networks
from pggan.checkpoints.read import NETWORKS, Checkpoint, checkpoints_of, has_checkpoints, resolve_checkpoint, run_of
from pggan.config.withdrawn import WITHDRAWN
from pggan.core.architecture import Architecture, Stem
from pggan.core.errors import UserError
from pggan.core.schedule import Schedule
from pggan.core.text import command_line
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.reducer import EXTRA_STATE, GradientReducer
from pggan.optim.state import State, StateDicts

# {setting: the reason why a resumed run may change the setting only with allow_changes=}
REFUSED = {
    "seed": "with another seed the order of images changes, so some images come twice in this epoch",
    "loss.name": "with another loss the discriminator's scores have another meaning",
    "data": "the data set is not the one that the checkpoint was trained on",
    "schedule": "at the checkpoint's image count, the new schedule has another resolution or fade-in weight (alpha)",
}

# {tensor name: the tensor's axis whose length depends on the number of classes}
CLASS_AXES = {"stem.dense.weight": 1, "head.score.weight": 0, "head.score.bias": 0}
NAMED = 3  # a log line names at most 3 tensors
# A network can start from the weights of another network only if these fields of the architecture are equal.
MODEL_FIELDS = ("fmap_base", "fmap_max", "resampling", "blur")  # model.* sets these fields
KIND_FIELDS = (*MODEL_FIELDS, "latent_size", "fmap_decay")


def find_resume_point(resume: str, run_dir: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the checkpoint that resume= (auto, never or a path) selects, None for a new run, and lines for the log.

    Raises UserError if the path has no checkpoint, if all checkpoints are corrupt, if resume=never although `run_dir`
    has checkpoints, or if the path is a checkpoint of `run_dir` other than the newest.
    """
    has_own = bool(checkpoints_of(run_dir))
    if resume == "never" and has_own:
        remedy = "Choose another run_dir=, or resume=auto."
        raise UserError(f"resume=never does not allow run_dir={run_dir}, which has checkpoints.", remedy)
    if resume in ("auto", "never"):
        return resolve_checkpoint(run_dir, "run_dir") if has_own else (None, [])
    if not has_own:
        return resolve_checkpoint(Path(resume), "resume")
    own, notes = resolve_checkpoint(run_dir, "run_dir")
    named = Path(resume).resolve()  # the path may be missing, because the run may have removed the checkpoint
    if named.parent != (run_dir / "checkpoints").resolve():
        return own, [*notes, f"Ignoring resume={resume}: this run continues from its own newest checkpoint."]
    if named != own.directory.resolve():
        remedy = "To go back to this checkpoint, give a new run_dir=, too. The old run keeps its newer checkpoints."
        raise UserError(f"resume={resume} is not the newest checkpoint of {run_dir}.", remedy)
    return own, notes


def check_networks(checkpoint: Checkpoint, architecture: Architecture) -> None:
    """Raise UserError if the networks of `checkpoint` have another architecture than `architecture`."""
    if found := list(architecture.differences(checkpoint.architecture)):
        alone = command_line("train", run_dir=run_of(checkpoint.directory))
        remedy = f"To resume the old run: {alone} (with data.path= if the images have moved). "
        remedy += "To train other networks, choose a new run_dir=; init_from= copies the weights that fit."
        if {line.partition(":")[0] for line in found} <= {"latent_size", "fmap_decay"}:  # once keys of pggan
            remedy = "This version can't train the old networks; `pggan sample` can use them. Choose a new run_dir=."
        raise UserError(f"This run has other networks than {checkpoint.directory}: {'; '.join(found)}.", remedy)


def check_resumable(
    checkpoint: Checkpoint, changed: dict[str, str], allowed: Sequence[str], schedule: Schedule, prints: Sequence[str]
) -> list[str]:
    """Return a log line for each changed setting; `changed` is {key: 'key: before -> now'}.

    Raises UserError if a setting no longer exists, or if a setting in REFUSED changed and is not in `allowed`.
    """
    if gone := [key for key in changed if key in WITHDRAWN]:
        problem = f"The run of {checkpoint.directory} has settings that no longer exist: {', '.join(gone)}."
        remedy = f"Start a new run with its weights: init_from={checkpoint.directory} and a new run_dir=."
        raise UserError(problem, remedy)
    header, shown = checkpoint.header, schedule.at(max(checkpoint.images - 1, 0))
    kinds = {
        "seed": "seed" in changed,
        "loss.name": not {"loss.name", "loss.type"}.isdisjoint(changed),
        "data": header.get("data") not in (None, *prints),
        "schedule": (shown.resolution, shown.alpha) != (header["resolution"], header["alpha"]),
    }
    if refused := [kind for kind, differs in kinds.items() if differs and kind not in allowed]:
        why = "; ".join(f"{kind}: {REFUSED[kind]}" for kind in refused)
        lines = "".join(f"\n    {line}" for line in changed.values())
        problem = f"This run has another configuration than {checkpoint.directory}: {why}.{lines}"
        remedy = f"Give the old values, or a new run_dir=, or add 'allow_changes=[{','.join(refused)}]'."
        raise UserError(problem, remedy)
    return [f"Changed since the checkpoint: {line}" for line in changed.values()]


def transfer(path: str, state: State) -> Iterator[str]:
    """Load the weights of another run, checkpoint or generator file into a new `state`; yields lines to log."""
    state_dicts, stem = load_weights(path, state.g_ema.architecture)
    yield f"Weights taken over from {path}. The optimizers and the schedule start anew."
    if stem is not state.g_ema.architecture.stem:
        yield f"  The first images differ from the old run's: G's first layers change from {stem} to {Stem.official}."
    for name, network in zip(NETWORKS, (state.g.network, state.d.network, state.g_ema), strict=True):
        own, theirs = network.state_dict(), state_dicts.get(name, {})
        fitting = {key: taken_over(key, own[key], value) for key, value in theirs.items() if key in own}
        network.load_state_dict({key: own[key] if fitting.get(key) is None else fitting[key] for key in own})
        new = [key for key in own if fitting.get(key) is None]
        changed = [key for key in own if key not in new and own[key].shape != theirs[key].shape]
        yield f"  {name}: {len(own) - len(new)} of {len(own)} tensors"
        unused = [key for key in theirs if key not in own]
        for what, keys in (("new", new), ("adapted to other channels or classes", changed), ("not used", unused)):
            if keys and new != [*own]:
                yield f"    {what}: {', '.join(keys[:NAMED])}{', …' * (len(keys) > NAMED)}"


def taken_over(name: str, own: Tensor, theirs: Tensor) -> Tensor | None:
    """Adapt another run's tensor `theirs` to the shape of `own`; returns None if that is impossible.

    If only one tensor is for grey images, each channel of the result is the mean of `theirs` over its channels.
    If only the number of classes differs, the result has the weights in `own` for the classes that `theirs` lacks.
    """
    theirs, kind = theirs.to(own.device), name.split(".", maxsplit=1)[0]
    axis = CLASS_AXES.get(name, int(kind == "from_rgb"))  # `own` and `theirs` may differ in length along this axis only
    if own.shape == theirs.shape:
        return theirs
    if own.shape[:axis] + own.shape[axis + 1 :] != theirs.shape[:axis] + theirs.shape[axis + 1 :]:
        return None
    size, their_size = own.shape[axis], theirs.shape[axis]
    if name in CLASS_AXES:
        result, part = own.clone(), min(size, their_size)
        result.narrow(axis, 0, part).copy_(theirs.narrow(axis, 0, part))
        return result
    if kind not in ("to_rgb", "from_rgb") or {size, their_size} != {1, 3}:
        return None
    # D's first layer divides its weights by sqrt(image channels). `scale` keeps D's output for grey images the same.
    scale = sqrt(their_size / size) if kind == "from_rgb" else 1.0
    return (theirs.mean(axis, keepdim=True) * scale).expand_as(own)


def load_weights(path: str, architecture: Architecture) -> tuple[StateDicts, Stem]:
    """Return all weights in `path` and G's stem (first layers); raises UserError if `architecture` can't use them."""
    if has_checkpoints(Path(path)):
        checkpoint, _ = resolve_checkpoint(Path(path), "init_from")
        state_dicts = {name: checkpoint.load(name) for name in NETWORKS}
        theirs = checkpoint.architecture
    else:
        network = load_generator(path, torch.device("cpu"), "init_from").network
        state_dicts = dict.fromkeys(("generator", "generator_ema"), network.state_dict())
        state_dicts |= stored_networks(generator_path(path))
        theirs = network.architecture
    if found := [line for line in architecture.differences(theirs) if line.split(":")[0] in KIND_FIELDS]:
        problem = f"init_from={path} has networks that do not fit the networks of this run ({'; '.join(found)})."
        remedy = "Use another file: pggan can't train networks with this file's latent_size or fmap_decay."
        if (theirs.latent_size, theirs.fmap_decay) == (min(theirs.fmap_base, theirs.fmap_max), 1.0):
            keys = (f"model.{name}={getattr(theirs, name)}" for name in MODEL_FIELDS)
            remedy = f"Use the model settings of the networks in init_from=: {' '.join(keys)}."
        raise UserError(problem, remedy)
    return state_dicts, theirs.stem


def broadcast_state(state: State, reducer: GradientReducer, checkpoint: Checkpoint | None, group: ProcessGroup) -> None:
    """Broadcast rank 0's `state`; load the reducer tensors of rank 0's `checkpoint` (or None) into each `reducer`."""
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
    reducer.load_extra_state(extra)
