"""Tables, numbers and lines in the console."""

from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

Log = Callable[[str], None]  # called with a line to report


def new_table(title: str, first: str, *others: str) -> Table:
    """A table without lines; its columns after the first are numbers."""
    columns = [Column(first, no_wrap=True), *(Column(name, justify="right", no_wrap=True) for name in others)]
    table = Table(
        *columns, title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.pad_edge = table.show_edge = False
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
