"""Where a run starts: at a checkpoint, with the weights of another run, or from nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pggan.checkpoints.generator_file import load_generator
from pggan.checkpoints.header import STATE_FILE, differences
from pggan.checkpoints.read import Checkpoint, checkpoints_of, resolve_checkpoint
from pggan.config.describe import changes
from pggan.core.architecture import Architecture
from pggan.core.errors import UserError, nearest
from pggan.core.schedule import Schedule
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


# ---- finding ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint to go on from, if any, and what there is to say about the choice."""

    checkpoint: Checkpoint | None
    remarks: list[str]


def find_resume_point(resume: str, run_dir: Path) -> ResumePoint:
    """The checkpoint that `resume` asks for: auto, never, or the path of a run or checkpoint.

    Raises UserError when there is none at that path, when `run_dir` has checkpoints that it must not have, or when
    none of its checkpoints is valid.
    """
    has_own = bool(checkpoints_of(run_dir))
    if resume == "never":
        if has_own:
            raise UserError(f"resume=never, but {run_dir} holds a run.", "Choose another run_dir=, or resume=auto.")
        return ResumePoint(None, [])
    if resume == "auto":
        return _resume_point(run_dir, "run_dir") if has_own else ResumePoint(None, [])
    other = _resume_point(Path(resume), "resume")
    if not has_own:
        return other
    own = _resume_point(run_dir, "run_dir")
    assert own.checkpoint is not None and other.checkpoint is not None, "_resume_point raises when there is none"
    if other.checkpoint.directory.resolve().parent == (run_dir / "checkpoints").resolve():
        if other.checkpoint.images == own.checkpoint.images:
            return own
        raise UserError(
            f"resume={resume} is not the newest checkpoint of {run_dir}.",
            "To go back to it, give a new run_dir= as well: what came after it stays as it is.",
        )
    return ResumePoint(
        own.checkpoint, [*own.remarks, f"Not starting from resume={resume} again: this run has gone on."]
    )


def _resume_point(path: Path, key: str) -> ResumePoint:
    checkpoint, corrupt = resolve_checkpoint(path, key)
    return ResumePoint(checkpoint, [f"Passed over a corrupt checkpoint: {problem}" for problem in corrupt])


# ---- going on --------------------------------------------------------------------------------------------


def check_networks(checkpoint: Checkpoint, architecture: Architecture) -> None:
    """Raise UserError, naming the fields, unless the checkpoint holds these networks."""
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
    """What has changed since `checkpoint`, as lines; raises UserError when some of it is refused.

    `description` and `fingerprint` are those of the configuration and the data now; `allowed` names refusals to waive.
    """
    for name in allowed:
        if name not in REFUSED:
            raise UserError(f"allow_changes={name}: there is no such change.", nearest(name, REFUSED))
    found = [
        (key, line)
        for key, line in changes(checkpoint.header["config"], description)
        if key not in ("resume", "run_dir")
    ]
    refusals = dict(_refusals(checkpoint, [key for key, _ in found], fingerprint, schedule))
    waived = {key: name for key, name in refusals.items() if name in allowed}
    lines = []
    for key, line in [*found, *((key, key) for key in refusals if key not in dict(found))]:
        if key in waived:
            verdict = f"allowed by allow_changes: {REFUSED[waived[key]]}"
        else:
            verdict = f"refused: {REFUSED[refusals[key]]}" if key in refusals else "allowed"
        lines.append(f"{line} ({verdict})")
    if refusals.keys() - waived.keys():
        names = sorted({refusals[key] for key in refusals})
        raise UserError(
            f"{checkpoint.directory} was trained with another configuration:\n    " + "\n    ".join(lines),
            f"Give the values from before, or a new run_dir=. 'allow_changes=[{','.join(names)}]' goes on even so.",
        )
    return [f"Changed since then: {line}" for line in lines]


def _refusals(
    checkpoint: Checkpoint, changed: list[str], fingerprint: str, schedule: Schedule
) -> Iterator[tuple[str, str]]:
    """Changed keys that are refused, each with its name in REFUSED."""
    for key in changed:
        if key in ("seed", "loss.name"):
            yield key, key
    before = checkpoint.header.get("data")
    if before is not None and before != fingerprint:
        keys = [key for key in changed if key in DATA_KEYS]
        yield from ((key, "data") for key in keys or ["the images themselves"])
    shown = schedule.at(max(checkpoint.images - 1, 0))
    if (shown.resolution, shown.alpha) != (checkpoint.header["resolution"], checkpoint.header["alpha"]):
        yield from ((key, "schedule") for key in changed if key.startswith("schedule."))


# ---- starting with weights ---------------------------------------------------------------------------------


def transfer(path: str, state: State) -> Iterator[str]:
    """Take over the weights of the run, checkpoint or generator file at `path` into a new `state`; gives lines to log.

    Layers that `path` has not, those of a higher resolution or of other image channels and classes, stay new.
    Raises UserError when there is no such thing, or its networks are of another kind.
    """
    parts, architecture = _weights(path)
    ours = state.g_ema.architecture
    kind = ("latent_size", "fmap_base", "fmap_decay", "fmap_max", "resampling")
    found = [line for line in differences(ours, architecture) if line.split(":")[0] in kind]
    if found:
        raise UserError(
            f"init_from={path} has networks of another kind ({'; '.join(found)}).", "Give the model keys of that run."
        )
    yield f"Weights taken over from {path}; nothing else: optimizers, images shown and schedule start anew."
    for name, network in (
        ("generator", state.g.network),
        ("discriminator", state.d.network),
        ("generator_ema", state.g_ema),
    ):
        own = network.state_dict()
        fitting = {
            key: value for key, value in parts.get(name, {}).items() if key in own and own[key].shape == value.shape
        }
        network.load_state_dict({**own, **fitting})
        yield f"  {name}: {len(fitting)} of {len(own)} tensors"


def _weights(path: str) -> tuple[dict[str, dict[str, Tensor]], Architecture]:
    """The weights by network; a generator file has the averaged generator only, which then serves as both."""
    directory = Path(path)
    if (directory / STATE_FILE).exists() or checkpoints_of(directory):
        checkpoint, _ = resolve_checkpoint(directory, "init_from")
        names = ("generator", "discriminator", "generator_ema")
        return {name: checkpoint.load(name) for name in names}, checkpoint.architecture
    from torch import device

    network = load_generator(path, device("cpu")).network
    return {"generator": network.state_dict(), "generator_ema": network.state_dict()}, network.architecture
