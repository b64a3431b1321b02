"""Tables and numbers for people."""

from rich.box import SIMPLE_HEAD
from rich.table import Table


def new_table(title: str, first: str, *others: str) -> Table:
    """A table without lines, whose columns after the first are numbers."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def three_digits(value: float) -> str:
    """Or all before the point; 0 for what is not worth the place."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.001 else "0"


def duration(seconds: float) -> str:
    """Three digits in the largest unit of which there are two."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
