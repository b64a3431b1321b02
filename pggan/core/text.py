"""Text for people: tables, numbers, and commands to be given next."""

import re
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

Log = Callable[[str], None]  # called with a line to report
NEXT = "Next:"
PLAIN = re.compile(r"(?!(null|true|false|nan|inf)$|\.\d)[a-z/._][\w/.:+@-]*", re.ASCII | re.IGNORECASE)


def next_command(command: str, *words: str, **values: object) -> str:
    """The line that names a `pggan` command to be given next, as a shell takes it.

    Args: words: overrides and flags as the command takes them; values: by key, placed before them, any text or lists.
    """
    given = [f"{key}={as_hydra_reads_it(value)}" for key, value in values.items()]
    return f"{NEXT} {shlex.join(['pggan', *command.split(), *given, *words])}"


def key_of(override: str) -> str:
    """The key or group of an override."""
    return override.lstrip("+~").partition("=")[0]


def as_hydra_reads_it(value: object) -> str:
    """A value as an override of Hydra's has it: in quotes where its characters mean something there."""
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
    """A table without lines; its columns after the first are numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table

    columns = [Column(first, no_wrap=True), *(Column(name, justify="right", no_wrap=True) for name in others)]
    table = Table(*columns, title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.padding, table.pad_edge, table.show_edge = (0, 1, 0, 0), False, False
    return table


def three_digits(value: float) -> str:
    """`value` with three significant digits, or all digits before the point; 0 below 0.001."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.001 else "0"


def duration(seconds: float) -> str:
    """`seconds` with three digits, in the largest of d, h, min and s that gives at least 2; in ms below 0.1."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{three_digits(seconds / length)} {unit}"
    return f"{seconds:.3g} s" if seconds >= 0.1 or seconds == 0 else f"{1000 * seconds:.3g} ms"
