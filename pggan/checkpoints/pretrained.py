"""Generators that come with the package: `run=pretrained:NAME`."""

from pathlib import Path

from pggan.core.errors import UserError

PREFIX = "pretrained:"
FOLDER = Path(__file__).parent / "pretrained"


def pretrained_names() -> list[str]:
    """The names after `pretrained:` that exist."""
    return sorted(file.stem for file in FOLDER.glob("*.safetensors"))


def path_of_run(run: str, key: str = "run") -> Path:
    """The path that `run` names, or the file of a generator that comes with the package.

    Raises UserError, naming `key`, when none has that name.
    """
    if not run.startswith(PREFIX):
        return Path(run)
    name = run.removeprefix(PREFIX)
    if name not in pretrained_names():
        there = ", ".join(PREFIX + known for known in pretrained_names())
        raise UserError(f"{key}={run}: no such generator comes with the package.", f"There is {there}.")
    return FOLDER / f"{name}.safetensors"
