"""Text for users: tables, numbers, durations, and suggestions for the next command."""

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

Log = Callable[[str], None]
NEXT = "Next:"
AS_TYPED = re.compile(r"(?!null$)[^'\"~\[{].*", re.DOTALL)  # matches values that need no quotes in a `pggan` command
PLAIN = re.compile(r"(?!(null|true|false|nan|inf)$|\.\d)[a-z/._][\w/.:+@-]*", re.ASCII | re.IGNORECASE)


def next_command(command: str, *words: str, **values: object) -> str:
    """A line that suggests the next command to the user; takes the same arguments as `command_line`."""
    return f"{NEXT} {command_line(command, *words, **values)}"


def command_line(command: str, *words: str, **values: object) -> str:
    """A `pggan` command with arguments key=value, quoted for a shell; `words` are more arguments, in Hydra's syntax."""
    is_typed = {key: isinstance(value, str | Path) and AS_TYPED.fullmatch(str(value)) for key, value in values.items()}
    given = [f"{key}={value if is_typed[key] else as_hydra_reads_it(value)}" for key, value in values.items()]
    return shlex.join(["pggan", *command.split(), *given, *words])


def key_of(override: str) -> str:
    """The key or config group that a Hydra override sets, such as 'loss.gamma' for '+loss.gamma=10'."""
    return override.lstrip("+~").partition("=")[0]


def as_hydra_reads_it(value: object) -> str:
    """Write `value` in Hydra's override syntax, in quotes if necessary."""
    if isinstance(value, list):
        return f"[{','.join(map(as_hydra_reads_it, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {as_hydra_reads_it(each)}' for key, each in value.items())}}}"
    text = str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
    if isinstance(value, int | float | None) or PLAIN.fullmatch(text):
        return text
    escaped = re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + ('\\"' if found[2] else ""), text)
    return f'"{escaped}"'


def new_table(title: str, first: str, *others: str) -> "Table":
    """A Rich table without borders; all columns but the first are aligned to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table

    columns = [Column(first, no_wrap=True), *(Column(name, justify="right", no_wrap=True) for name in others)]
    table = Table(*columns, title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.padding, table.pad_edge, table.show_edge = (0, 1, 0, 0), False, False
    return table


def three_digits(value: float) -> str:
    """Format `value`: |value| >= 100 as a whole number, |value| < 0.001 as 0, others with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else "0" if abs(value) < 0.001 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Format `seconds` in a fitting unit with at most three significant digits: '50 ms', '119 s', '2.5 h'."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{three_digits(seconds / length)} {unit}"
    return f"{seconds:.3g} s" if seconds >= 0.1 or seconds == 0 else f"{1000 * seconds:.3g} ms"
