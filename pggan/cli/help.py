"""The texts of --help.  The help of a command is its YAML files, whose comments explain the keys."""

from collections.abc import Sequence
from textwrap import fill, indent, wrap

from pggan.cli.commands import COMMANDS, STAGES, Command
from pggan.config.defaults import CONFIGS, choices_of

WIDTH = 80  # columns of a line


def overview() -> str:
    """The text of `pggan --help`: all commands, grouped by stage of the work."""
    column = max(map(len, COMMANDS))
    lines = ["Usage: pggan COMMAND key=value …", "", "First steps: pggan train experiment=demo run_dir=outputs/demo"]
    for stage, names in STAGES.items():
        lines += ["", stage, *(hang(f"  {name:<{column}}  ", COMMANDS[name].duty) for name in names)]
    return "\n".join([*lines, "", "pggan COMMAND --help shows the keys of a command. Version: pggan --version"])


def help_text(command: Command, arguments: Sequence[str]) -> str:
    """The text of `pggan COMMAND --help`: usage, example, YAML files of the keys, and choices of config groups."""
    # Lines end with a backslash, so that users can paste the whole example into a shell.
    example = hang("Example:  ", command.example, " \\")
    parts = [f"{fill(command.duty, WIDTH)}\n\nUsage:    pggan {command.name} key=value …\n{example}"]
    chosen = {group: name for group, name in command.own_groups.items() if name}
    chosen |= {key: value for key, _, value in (one.partition("=") for one in arguments) if key in chosen}
    files = [command.config_file, *(CONFIGS / group / f"{name}.yaml" for group, name in chosen.items())]
    texts = ((file.relative_to(CONFIGS.parent), file.read_text()) for file in files if file.is_file())
    parts += [f"Keys of {file}:\n\n{indent(text.strip(), '  ')}" for file, text in texts]
    if command.groups:
        choices = (f"{group}= {' '.join(choices_of(group))}" for group in command.groups)
        wrapped = (fill(text, WIDTH, initial_indent="  ", subsequent_indent="    ") for text in choices)
        parts.append("\n".join(["Choices, each a file of configs/:", *wrapped]))
    parts.append("--cfg job shows the composed configuration.\n--multirun key=a,b runs one job per value.")
    return "\n\n".join(parts)


def hang(start: str, text: str, end: str = "") -> str:
    """Wrap `text` after `start` with a hanging indent; every line but the last ends with `end`."""
    room = WIDTH - len(start) - len(end)
    return start + f"{end}\n{' ' * len(start)}".join(wrap(text, room, break_long_words=False, break_on_hyphens=False))
