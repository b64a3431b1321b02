"""The commands of `pggan` and the function that each command calls; YAML files in configs/ explain their keys."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pggan.config.defaults import CONFIGS

# The headings of `pggan --help`, with their commands.  "module:name" is a function from configuration to exit code.
STAGES = {
    "Before": {
        "doctor": "pggan.performance.doctor:run",
        "prepare": "pggan.data.prepare:run",
        "plan": "pggan.performance.plan:run",
    },
    "Train": {
        "train": "pggan.run.train:run",
        "monitor": "pggan.run.monitor:run",
        "inspect": "pggan.run.inspect:run",
    },
    "Look at faces": {
        "sample": "pggan.sampling.commands:sample",
        "interpolate": "pggan.sampling.commands:interpolate",
        "timelapse": "pggan.sampling.timelapse:run",
        "explore": "pggan.sampling.explore:run",
        "project": "pggan.sampling.commands:project_images",
        "directions": "pggan.sampling.commands:find_directions",
    },
    "Measure": {
        "evaluate": "pggan.metrics.command:run",
        "bench": "pggan.performance.bench:run",
        "bench scaling": "pggan.performance.bench:run_scaling",
    },
    "Exchange": {
        "export": "pggan.interop.export:run",
        "import": "pggan.interop.importing:run",
    },
}


@dataclass(frozen=True)
class Command:
    """One command of the program; a dataclass in pggan.config.commands checks its keys."""

    name: str
    function: str

    @property
    def schema_type(self) -> type:
        """The dataclass of this command's keys, for example BenchScalingConfig for 'bench scaling'."""
        from pggan.config import commands

        return getattr(commands, f"{self.name.title().replace(' ', '')}Config")  # type: ignore[no-any-return]

    @property
    def config_file(self) -> Path:
        """The YAML file of this command's keys.  Only files in configs/ itself can use its config groups."""
        name = f"{self.name.replace(' ', '_')}.yaml"
        return next(file for file in (CONFIGS / name, CONFIGS / "commands" / name) if file.is_file())

    @property
    def duty(self) -> str:
        """A sentence that says what this command does: the first line of its YAML file."""
        return self.config_file.read_text().splitlines()[0].removeprefix("# ")

    @property
    def example(self) -> str:
        """A command line as an example: the second line of this command's YAML file."""
        return self.config_file.read_text().splitlines()[1].removeprefix("#   ")

    @cached_property
    def defaults(self) -> list[Any]:
        """Hydra's defaults list in this command's YAML file; an entry is {group: choice}, or another command's name."""
        from yaml import safe_load

        # Only the list is parsed, because parsing the whole YAML file takes longer.
        listed = self.config_file.read_text().partition("\ndefaults:\n")[2].partition("\n\n")[0]
        return [one for one in safe_load(listed) or [] if one != "_self_"]

    @property
    def groups(self) -> dict[str, str | None]:
        """The config groups of this command (folders of configs/), each with the file that it uses by default."""
        found: dict[str, str | None] = {}
        for one in self.defaults:
            found |= one if isinstance(one, dict) else COMMANDS[one].groups
        return found


COMMANDS = {name: Command(name, function) for stage in STAGES.values() for name, function in stage.items()}
