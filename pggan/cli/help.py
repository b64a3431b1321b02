"""The texts of --help; the help of a command shows YAML files, whose comments explain the keys."""

import re
from collections.abc import Sequence
from textwrap import fill, indent, wrap

from pggan.cli.commands import COMMANDS, STAGES, Command
from pggan.config.defaults import CONFIGS, choices_of

WIDTH = 80  # maximum number of characters per line; YAML files may have longer lines
FIRST = "First: pggan train data.path=photos hours=2, or pggan train experiment=demo"


def overview() -> str:
    """The text of `pggan --help`: all commands, under headings such as 'Look at faces'."""
    column = max(map(len, COMMANDS))
    lines = ["Usage: pggan COMMAND key=value …", "", FIRST]
    for stage, names in STAGES.items():
        lines += ["", stage, *(hang(f"  {name:<{column}}  ", COMMANDS[name].duty) for name in names)]
    return "\n".join([*lines, "", "pggan COMMAND --help shows the keys of a command. Version: pggan --version"])


def help_text(command: Command, arguments: Sequence[str]) -> str:
    """The text of `pggan COMMAND --help`: usage, example, keys and config groups."""
    example = hang("Example:  ", command.example, " \\")  # a shell joins lines that end with a backslash
    parts = [f"{fill(command.duty, WIDTH)}\n\nUsage:    pggan {command.name} key=value …\n{example}"]
    chosen = {group: name for group, name in command.own_groups.items() if name}
    chosen |= {key: value for key, _, value in (one.partition("=") for one in arguments) if key in chosen}
    files = [command.config_file, *(CONFIGS / group / f"{name}.yaml" for group, name in chosen.items())]
    texts = ((file.relative_to(CONFIGS.parent), file.read_text("utf-8")) for file in files if file.is_file())
    parts += [f"Keys of {file}:\n\n{indent(text.strip(), '  ')}" for file, text in texts]
    if command.groups:
        choices = (f"{group}= {' '.join(choices_of(group))}" for group in command.groups)
        wrapped = (fill(text, WIDTH, initial_indent="  ", subsequent_indent="    ") for text in choices)
        parts.append("\n".join(["Choices, each a file of configs/:", *wrapped]))
    parts.append("--cfg job shows the composed configuration.\n--multirun key=a,b runs one job per value.")
    return "\n\n".join(parts)


def meanings(choices: dict[str, str]) -> dict[str, str]:
    """Map keys of `pggan train`, such as loss.gamma, to their YAML comments; `choices` is {config group: choice}."""
    files = {"": CONFIGS / "train.yaml"}
    for group, name in (COMMANDS["train"].own_groups | choices).items():
        files[f"{group}."] = CONFIGS / group / f"{name}.yaml"
    found: dict[str, str] = {}
    for group, file in files.items():
        section, comment, last = group, "", ""
        for line in file.read_text("utf-8").splitlines() if file.is_file() else []:
            if key := re.match(r"( *)(?!defaults)(\w+):(.*)", line):
                section = group if not key[1] else section
                found[section + key[2]], comment = comment, ""
                section = f"{key[2]}." if not group and not key[3] else section
            elif line.strip().startswith("#"):
                comment = f"{comment} " * last.startswith("#") + line.strip("# ")
            last = line.strip()
    return found


def hang(start: str, text: str, end: str = "") -> str:
    """Wrap `text` after `start`; indent later lines by the width of `start`; append `end` to all lines but the last."""
    room = WIDTH - len(start) - len(end)
    return start + f"{end}\n{' ' * len(start)}".join(wrap(text, room, break_long_words=False, break_on_hyphens=False))
