"""The texts of `pggan --help`, `pggan COMMAND --help`, one screen each, and `pggan COMMAND --help all`.

The keys and what they mean are those of the YAML files with their comments.
"""

import re
from collections.abc import Iterator, Sequence
from textwrap import fill, indent, shorten, wrap

from pggan.cli.commands import COMMANDS, STAGES, Command
from pggan.config.defaults import CONFIGS, choices_of

WIDTH = 80  # columns of a line


def overview() -> str:
    """The list of commands, by stage of the work."""
    column = max(map(len, COMMANDS))
    lines = ["Usage: pggan COMMAND key=value …", "", "First steps: pggan train experiment=demo run_dir=outputs/demo"]
    for stage, names in STAGES.items():
        lines += ["", stage, *(hang(f"  {name:<{column}}  ", COMMANDS[name].duty) for name in names)]
    return "\n".join([*lines, "", "pggan COMMAND --help shows its keys. pggan --version."])


def help_text(command: Command, arguments: Sequence[str]) -> str:
    """One screen: usage, an example, the choices of every group, and a line per key or section; or all keys in full."""
    # The backslash is the shell's line continuation, so the example can be pasted.
    example = hang("Example:  ", command.example, " \\")
    parts = [f"{fill(command.duty, WIDTH)}\n\nUsage:    pggan {command.name} key=value …\n{example}"]
    if command.groups:
        choices = (f"{group}= {' '.join(choices_of(group))}" for group in command.groups)
        wrapped = (fill(text, WIDTH, initial_indent="  ", subsequent_indent="    ") for text in choices)
        parts.append("\n".join(["Choices, each a file of configs/:", *wrapped]))
    if "all" in arguments:
        chosen = {**command.groups, **dict(one.split("=", 1) for one in arguments if "=" in one)}
        files = [*command.config_files, *(CONFIGS / group / f"{chosen[group]}.yaml" for group in command.groups)]
        texts = ((file.relative_to(CONFIGS.parent), file.read_text()) for file in files if file.is_file())
        return "\n\n".join([*parts, *(f"Keys of {file}:\n\n{indent(text.strip(), '  ')}" for file, text in texts)])
    shown = {}
    for key, value, comment in keys_of(command.config_file.read_text()):
        if "." not in key:
            shown[f"{key}={'' if value in ('null', '???') else value}" if value else f"{key}.*"] = comment
    column = min(max(map(len, shown)), 34)
    parts.append("\n".join(["Keys:", *(first_sentence(f"  {key:<{column}}  ", text) for key, text in shown.items())]))
    flags = ["--cfg job shows the composed configuration.", "--multirun key=a,b runs one job per value."]
    parts.append("\n".join([f"pggan {command.name} --help all explains every key in full.", *flags]))
    return "\n\n".join(parts)


def hang(start: str, text: str, end: str = "") -> str:
    """`start` and `text`, in lines that begin below the beginning of `text`; all but the last one end with `end`."""
    room = WIDTH - len(start) - len(end)
    return start + f"{end}\n{' ' * len(start)}".join(wrap(text, room, break_long_words=False, break_on_hyphens=False))


def first_sentence(start: str, text: str) -> str:
    """`start` and as much of the first sentence of `text` as fits into the width."""
    sentence = text.split(". ", 1)[0].rstrip(".")
    return (start + shorten(sentence, WIDTH - len(start), placeholder=" …")).rstrip()


def keys_of(text: str) -> Iterator[tuple[str, str, str]]:
    """Every key of a YAML text with its value there and the comment above it; `a.b` for a key b in a.

    A comment holds for all keys below it up to an empty line or another comment.
    """
    comment: list[str] = []
    above: list[tuple[int, str]] = []
    before = ""
    for line in text.splitlines():
        if line.strip().startswith("#"):
            comment = [*(comment if before.strip().startswith("#") else []), line.strip().removeprefix("#").strip()]
        elif not line.strip():
            comment = []
        elif found := re.match(r"( *)(\w+):(.*)$", line):
            depth = len(found[1])
            above = [(other, name) for other, name in above if other < depth] + [(depth, found[2])]
            if above[0][1] != "defaults":
                yield ".".join(name for _, name in above), found[3].strip(), " ".join(comment)
        before = line
