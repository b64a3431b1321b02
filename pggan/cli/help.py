"""The texts of `pggan --help` and `pggan COMMAND --help`: the YAML files, with their comments."""

import re
from collections.abc import Sequence
from textwrap import indent

from pggan.cli.commands import COMMANDS, CONFIGS, Command, choices_of


def overview() -> str:
    """The list of commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  {command.name:<{width}}  {command.duty}" for command in COMMANDS.values()]
    return "\n".join(["Usage: pggan COMMAND key=value …", "", *lines, "", "pggan COMMAND --help lists its keys."])


def help_text(command: Command, arguments: Sequence[str]) -> str:
    """Usage, and the YAML files that the configuration is composed of, with their comments."""
    primary = command.config_file.read_text()
    parts = [f"{command.duty}\n\nUsage:    pggan {command.name} key=value …\nExample:  {command.example}"]
    if command.name == "train":
        parts.append("`python train.py key=value …` is the same command.")
    file = command.config_file.relative_to(CONFIGS.parent)
    without_defaults = re.sub(r"^defaults:\n(?:  .*\n)+", "", primary, flags=re.MULTILINE)
    parts.append(f"Keys of {file} with their defaults:\n\n{indent(without_defaults.strip(), '  ')}")
    chosen = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    for group, default in re.findall(r"^  - (\w+): (\w+)", primary, re.MULTILINE):
        choices, choice = choices_of(group), chosen.get(group, default)
        parts.append(f"{group}={'|'.join(choices)}")
        if choice in choices:
            content = (CONFIGS / group / f"{choice}.yaml").read_text()
            parts[-1] += f"\nKeys of configs/{group}/{choice}.yaml:\n\n{indent(content.strip(), '  ')}"
    parts.append("--cfg job shows the composed configuration; --multirun runs one job per value of key=a,b.")
    return "\n\n".join(parts)
