"""The texts of `pggan --help`, `pggan COMMAND --help`, one screen each, and `pggan COMMAND --help all`.

The keys and what they mean are those of the YAML files with their comments.
"""

import re
from collections.abc import Iterator, Sequence
from shutil import get_terminal_size
from textwrap import fill, indent, shorten, wrap

from pggan.cli.commands import COMMANDS, Command
from pggan.cli.recipe_file import with_recipes
from pggan.config.files import CONFIGS, choices_of, roots

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
    placed = {name for names in STAGES.values() for name in names}
    lines = ["Usage: pggan COMMAND key=value …", "", "First steps: pggan train experiment=demo run_dir=outputs/demo"]
    for stage, names in {**STAGES, "More": tuple(name for name in COMMANDS if name not in placed)}.items():
        there = [COMMANDS[name] for name in names if name in COMMANDS]
        if there:
            lines += ["", stage, *(hang(f"  {command.name:<{column}}  ", command.duty) for command in there)]
    return "\n".join([*lines, "", "pggan COMMAND --help shows its keys. pggan --version; pggan --completion bash."])


def help_text(command: Command, arguments: Sequence[str], folder: str | None = None) -> str:
    """One screen: usage, an example, the choices of every group, and a line per key or section.

    Args: folder: of configuration files of one's own.
    """
    if "all" in arguments:
        return full_text(command, arguments, folder)
    parts = [usage(command)]
    defaults, keys = command.groups, list(keys_of(command.config_file.read_text()))
    if defaults:
        choices = (f"{group}= {' '.join(choices_of(group, folder))}" for group in defaults)
        wrapped = (fill(text, width(), initial_indent="  ", subsequent_indent="    ") for text in choices)
        places = "configs/" if folder is None else f"configs/ or {folder}"
        parts.append("\n".join([f"Choices, each a file of {places}:", *wrapped]))
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
    comment: list[str] = []
    before = ""
    for line in text.splitlines():
        if line.startswith("#"):
            comment = [*(comment if before.startswith("#") else []), line[1:].strip()]
        elif not line.strip():
            comment = []
        elif (found := re.match(r"(\w+):(.*)", line)) and found[1] != "defaults":
            value = found[2].strip()
            shown = "" if value in ("null", "???") else value
            yield (f"{found[1]}={shown}" if value else f"{found[1]}.*"), " ".join(comment)
            comment = comment if value else []
        before = line


def full_text(command: Command, arguments: Sequence[str], folder: str | None) -> str:
    """Usage, and the YAML files that the configuration is composed of, with their comments."""
    parts = [usage(command)]
    if command.name == "train":
        parts.append("`python train.py key=value …` is the same command.")
    for file in command.config_files:
        without_defaults = re.sub(r"^defaults:\n(?:  .*\n)+", "", file.read_text(), flags=re.MULTILINE)
        name = file.relative_to(CONFIGS.parent)
        parts.append(f"Keys of {name} with their defaults:\n\n{indent(without_defaults.strip(), '  ')}")
    chosen = dict(argument.split("=", 1) for argument in with_recipes(arguments, folder) if "=" in argument)
    for group, default in command.groups.items():
        choices, choice = choices_of(group, folder), chosen.get(group, default)
        parts.append(f"{group}={'|'.join(choices)}")
        if choice in choices:
            file = next(file for root in roots(folder) if (file := root / group / f"{choice}.yaml").is_file())
            shown = file.relative_to(CONFIGS.parent) if file.is_relative_to(CONFIGS) else file
            parts[-1] += f"\nKeys of {shown}:\n\n{indent(file.read_text().strip(), '  ')}"
    return "\n\n".join(parts)
