"""Where a run starts: at a checkpoint, with the weights of another run, or from nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import device

from pggan.checkpoints.generator_file import load_generator
from pggan.checkpoints.header import STATE_FILE, differences
from pggan.checkpoints.read import Checkpoint, checkpoints_of, resolve_checkpoint
from pggan.config.describe import changes
from pggan.core.architecture import Architecture
from pggan.core.errors import UserError, nearest
from pggan.core.schedule import Schedule
from pggan.optim.reducer import Parts
from pggan.optim.state import State

# What can't change in the middle of a run without being asked for, and why.
REFUSED = {
    "seed": "from here on other images would be drawn, some of them a second time in this epoch",
    "loss.name": "under another loss the discriminator's scores mean something else",
    "data": "the images are other ones than those it was trained on",
    "schedule": "the schedule says something else about the images that were shown already",
}

# What decides which images there are.  With the same fingerprint it makes no difference.
DATA_KEYS = ("data.path", "data.style", "data.count", "data.cache", "data.crop", "data.channels", "data.labels")

# What makes two networks of one kind, so that the weights of one fit the other.
KIND = ("latent_size", "fmap_base", "fmap_decay", "fmap_max", "resampling")


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint to resume from, if any, and lines to log about the choice."""

    checkpoint: Checkpoint | None
    remarks: list[str]


def find_resume_point(resume: str, run_dir: Path) -> ResumePoint:
    """The checkpoint that `resume` asks for: auto, never, or the path of a run or checkpoint.

    Raises UserError when there is none at that path, when `run_dir` has checkpoints that it must not have, or when
    none of its checkpoints is valid.
    """
    has_own = bool(checkpoints_of(run_dir))
    if resume == "never" and has_own:
        raise UserError(f"resume=never, but {run_dir} holds a run.", "Choose another run_dir=, or resume=auto.")
    if resume in ("auto", "never"):
        return ResumePoint(*_resolve(run_dir, "run_dir")) if has_own else ResumePoint(None, [])
    other, remarks = _resolve(Path(resume), "resume")
    if not has_own:
        return ResumePoint(other, remarks)
    own, remarks = _resolve(run_dir, "run_dir")
    if other.directory.resolve().parent != (run_dir / "checkpoints").resolve():
        return ResumePoint(
            own, [*remarks, f"Not starting from resume={resume} again: this run has checkpoints of its own."]
        )
    if other.images == own.images:
        return ResumePoint(own, remarks)
    raise UserError(
        f"resume={resume} is not the newest checkpoint of {run_dir}.",
        "To go back to it, give a new run_dir= as well: what came after it stays as it is.",
    )


def _resolve(path: Path, key: str) -> tuple[Checkpoint, list[str]]:
    checkpoint, corrupt = resolve_checkpoint(path, key)
    return checkpoint, [f"Passed over a corrupt checkpoint: {problem}" for problem in corrupt]


def check_networks(checkpoint: Checkpoint, architecture: Architecture) -> None:
    """Raise UserError, naming the fields, unless the checkpoint holds networks of this `architecture`."""
    found = list(differences(architecture, checkpoint.architecture))
    if found:
        raise UserError(
            f"{checkpoint.directory} holds other networks than this configuration asks for ({'; '.join(found)}).",
            "Give the same model, data and schedule.final_resolution as before, or a new run_dir=; "
            "init_from= takes over weights.",
        )


def check_changes(
    checkpoint: Checkpoint, description: dict[str, Any], fingerprint: str, schedule: Schedule, allowed: list[str]
) -> list[str]:
    """What has changed since `checkpoint`, as lines to log; raises UserError when some of it is refused.

    Args: description, fingerprint: of the configuration and the data now; allowed: names of refusals to waive.
    """
    for name in allowed:
        if name not in REFUSED:
            raise UserError(f"allow_changes={name}: there is no such change.", nearest(name, REFUSED))
    found = dict(changes(checkpoint.header["config"], description))
    for key in ("resume", "run_dir"):
        found.pop(key, None)
    refusals = dict(_refusals(checkpoint, list(found), fingerprint, schedule))
    lines = []
    for key in [*found, *(key for key in refusals if key not in found)]:
        verdict = "allowed"
        if key in refusals:
            name = refusals[key]
            verdict = f"{'allowed by allow_changes' if name in allowed else 'refused'}: {REFUSED[name]}"
        lines.append(f"{found.get(key, key)} ({verdict})")
    names = sorted(set(refusals.values()))
    if set(names) - set(allowed):
        raise UserError(
            f"{checkpoint.directory} was trained with another configuration:\n    " + "\n    ".join(lines),
            f"Give the values from before, or a new run_dir=. 'allow_changes=[{','.join(names)}]' resumes even so.",
        )
    return [f"Changed since then: {line}" for line in lines]


def _refusals(
    checkpoint: Checkpoint, changed: list[str], fingerprint: str, schedule: Schedule
) -> Iterator[tuple[str, str]]:
    """Changed keys that are refused, each with its name in REFUSED."""
    yield from ((key, key) for key in changed if key in ("seed", "loss.name"))
    if checkpoint.header.get("data") not in (None, fingerprint):
        keys = [key for key in changed if key in DATA_KEYS]
        yield from ((key, "data") for key in keys or ["the images themselves"])
    shown = schedule.at(max(checkpoint.images - 1, 0))
    if (shown.resolution, shown.alpha) != (checkpoint.header["resolution"], checkpoint.header["alpha"]):
        yield from ((key, "schedule") for key in changed if key.startswith("schedule."))


def transfer(path: str, state: State) -> Iterator[str]:
    """Take over the weights of the run, checkpoint or generator file at `path` into a new `state`; gives lines to log.

    Layers that `path` has not, those of a higher resolution or of other image channels and classes, stay new.
    """
    parts = load_weights(path, state.g_ema.architecture)
    yield f"Weights taken over from {path}; nothing else: optimizers, images shown and schedule start anew."
    networks = {"generator": state.g.network, "discriminator": state.d.network, "generator_ema": state.g_ema}
    for name, network in networks.items():
        own, theirs = network.state_dict(), parts.get(name, {})
        fitting = {key: value for key, value in theirs.items() if key in own and own[key].shape == value.shape}
        network.load_state_dict({**own, **fitting})
        yield f"  {name}: {len(fitting)} of {len(own)} tensors"


def load_weights(path: str, architecture: Architecture) -> Parts:
    """The weights at `path` by network; a generator file has the averaged generator only, which then serves as both.

    Raises UserError when there is nothing there, or its networks are of another kind than `architecture`.
    """
    directory = Path(path)
    if (directory / STATE_FILE).exists() or checkpoints_of(directory):
        checkpoint, _ = resolve_checkpoint(directory, "init_from")
        parts = {name: checkpoint.load(name) for name in ("generator", "discriminator", "generator_ema")}
        theirs = checkpoint.architecture
    else:
        network = load_generator(path, device("cpu"), "init_from").network
        parts = {"generator": network.state_dict(), "generator_ema": network.state_dict()}
        theirs = network.architecture
    found = [line for line in differences(architecture, theirs) if line.split(":")[0] in KIND]
    if found:
        raise UserError(
            f"init_from={path} has networks of another kind ({'; '.join(found)}).", "Give the model keys of that run."
        )
    return parts
