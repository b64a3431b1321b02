"""The commands of `pggan`, and the Python function that runs each command."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pggan.config.defaults import CONFIGS

# {heading in --help: {command: "module:function"}}; each function takes a configuration, and returns an exit code.
STAGES = {
    "Before": {
        "doctor": "pggan.performance.doctor:run",
        "prepare": "pggan.data.prepare:run",
        "plan": "pggan.performance.plan:run",
    },
    "Train": {"train": "pggan.run.train:run", "monitor": "pggan.run.monitor:run", "inspect": "pggan.run.inspect:run"},
    "Look at faces": {
        "sample": "pggan.sampling.commands:sample",
        "interpolate": "pggan.sampling.commands:interpolate",
        "timelapse": "pggan.run.inspect:timelapse",
        "explore": "pggan.sampling.explore:run",
        "project": "pggan.sampling.commands:project_images",
        "directions": "pggan.sampling.commands:find_directions",
    },
    "Measure": {
        "evaluate": "pggan.metrics.command:run",
        "bench": "pggan.performance.bench:run",
        "bench scaling": "pggan.performance.bench:run_scaling",
    },
    "Exchange": {"export": "pggan.interop.export:run", "import": "pggan.interop.importing:run"},
}


@dataclass(frozen=True)
class Command:
    """A command of `pggan`, whose configuration keys are listed in a dataclass and in a YAML file."""

    name: str
    function: str

    @property
    def schema_type(self) -> type:
        from pggan.config import commands

        return getattr(commands, f"{self.name.title().replace(' ', '')}Config")  # type: ignore[no-any-return]

    @property
    def config_file(self) -> Path:
        name = f"{self.name.replace(' ', '_')}.yaml"
        return next(file for file in (CONFIGS / name, CONFIGS / "commands" / name) if file.is_file())

    @property
    def duty(self) -> str:
        """A sentence that says what this command does: the first line of its YAML file."""
        return self.config_file.read_text("utf-8").splitlines()[0].removeprefix("# ")

    @property
    def example(self) -> str:
        return self.config_file.read_text("utf-8").splitlines()[1].removeprefix("#   ")

    @cached_property
    def own_groups(self) -> dict[str, str]:
        """The `defaults:` list of this command's YAML file, as {config group: default choice}."""
        listed = self.config_file.read_text("utf-8").partition("\ndefaults:\n")[2].partition("\n\n")[0]
        # This code does not import the package yaml: the import would take a fifth of the run time of --help.
        entries = (line.removeprefix("  - ").partition(": ") for line in listed.splitlines())
        return {group: choice for group, _, choice in entries}

    @property
    def groups(self) -> dict[str, str]:
        # `pggan plan` has all config groups of `pggan train`.
        parts = (COMMANDS[name].groups if name in COMMANDS else {name: one} for name, one in self.own_groups.items())
        return {group: choice for part in parts for group, choice in part.items() if choice}


COMMANDS = {name: Command(name, function) for stage in STAGES.values() for name, function in stage.items()}
