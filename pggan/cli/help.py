"""The texts of `pggan --help`, `pggan COMMAND --help`, one screen each, and `pggan COMMAND --help all`.

The keys and what they mean are those of the YAML files with their comments.
"""

from collections.abc import Iterator, Sequence
from shutil import get_terminal_size
from textwrap import fill, indent, shorten, wrap

from pggan.cli.commands import COMMANDS, Command
from pggan.config.values import CONFIGS, choices_of, roots

WIDTHS = (60, 100)  # columns: a line of fewer says too little, and one of more is hard to read
STAGES = {
    "Before": ("doctor", "prepare", "plan"),
    "Train": ("train", "monitor", "inspect"),
    "Look at faces": ("sample", "interpolate", "timelapse", "explore", "project", "directions"),
    "Measure": ("evaluate", "bench", "bench scaling"),
    "Exchange": ("export", "import"),
}


def width() -> int:
    """Columns that a line may take: those of the terminal, within WIDTHS; 80 where there is none, as in a pipe."""
    least, most = WIDTHS
    return min(max(get_terminal_size().columns, least), most)


def overview() -> str:
    """The list of commands, by stage of the work."""
    column = max(map(len, COMMANDS))
    lines = ["Usage: pggan COMMAND key=value …", "", "First steps: pggan train experiment=demo run_dir=outputs/demo"]
    for stage, names in STAGES.items():
        there = [COMMANDS[name] for name in names if name in COMMANDS]
        lines += ["", stage, *(hang(f"  {command.name:<{column}}  ", command.duty) for command in there)]
    return "\n".join([*lines, "", "pggan COMMAND --help shows its keys. pggan --version."])


def help_text(command: Command, arguments: Sequence[str], folder: str | None = None) -> str:
    """One screen: usage, an example, the choices of every group, and a line per key or section.

    Args: folder: of configuration files of one's own.
    """
    if "all" in arguments:
        return full_text(command, arguments, folder)
    parts = [usage(command)]
    if command.groups:
        choices = (f"{group}= {' '.join(choices_of(group, folder))}" for group in command.groups)
        wrapped = (fill(text, width(), initial_indent="  ", subsequent_indent="    ") for text in choices)
        places = "configs/" if folder is None else f"configs/ or {folder}"
        parts.append("\n".join([f"Choices, each a file of {places}:", *wrapped]))
    keys = list(keys_of(command.config_file.read_text()))
    column = min(max((len(key) for key, _ in keys), default=0), 34)
    parts.append("\n".join(["Keys:", *(shorten_line(f"  {key:<{column}}  ", comment) for key, comment in keys)]))
    flags = ["--cfg job shows the composed configuration.", "--multirun key=a,b runs one job per value."]
    parts.append("\n".join([f"pggan {command.name} --help all explains every key in full.", *flags]))
    return "\n\n".join(parts)


def usage(command: Command) -> str:
    """The duty of the command, its usage and an example, as text."""
    # The backslash is the shell's line continuation, so the example can be pasted.
    example = hang("Example:  ", command.example, " \\")
    return f"{fill(command.duty, width())}\n\nUsage:    pggan {command.name} key=value …\n{example}"


def hang(start: str, text: str, end: str = "") -> str:
    """`start` and `text`, in lines that begin below the beginning of `text`; all but the last one end with `end`."""
    room = width() - len(start) - len(end)
    return start + f"{end}\n{' ' * len(start)}".join(wrap(text, room, break_long_words=False, break_on_hyphens=False))


def shorten_line(start: str, text: str) -> str:
    """`start` and as much of the first sentence of `text` as fits into the width."""
    sentence = text.split(". ", 1)[0].rstrip(".")
    return (start + shorten(sentence, max(width() - len(start), 20), placeholder=" …")).rstrip()


def keys_of(text: str) -> Iterator[tuple[str, str]]:
    """Every key of a YAML text, `key=default` or `section.*`, with the comment above it.

    A comment holds for all keys below it up to an empty line, another comment or a section.
    """
    comment, before = "", ""
    for line in [one for one in text.splitlines() if not one.startswith((" ", "defaults:"))]:
        if line.startswith("#"):
            comment = f"{comment} {line[1:].strip()}" if before.startswith("#") else line[1:].strip()
        elif not line:
            comment = ""
        else:
            key, _, value = (part.strip() for part in line.partition(":"))
            yield f"{key}={'' if value in ('null', '???') else value}" if value else f"{key}.*", comment
            comment = comment if value else ""
        before = line


def full_text(command: Command, arguments: Sequence[str], folder: str | None) -> str:
    """Usage, and the YAML files that the configuration is composed of, with their comments."""
    parts = [usage(command)]
    for file in command.config_files:
        text = "\n".join(line for line in file.read_text().splitlines() if not line.startswith(("defaults:", "  - ")))
        parts.append(f"Keys of {file.relative_to(CONFIGS.parent)} with their defaults:\n\n{indent(text.strip(), '  ')}")
    chosen = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    for group, default in command.groups.items():
        choices, choice = choices_of(group, folder), chosen.get(group, default)
        parts.append(f"{group}={'|'.join(choices)}")
        if choice in choices:
            file = next(file for root in roots(folder) if (file := root / group / f"{choice}.yaml").is_file())
            parts[-1] += f"\nKeys of {file}:\n\n{indent(file.read_text().strip(), '  ')}"
    return "\n\n".join(parts)
