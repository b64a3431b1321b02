"""A plan as tables for the console, 80 columns wide."""

from collections.abc import Iterable
from math import log
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pggan.core.text import duration, new_table, three_digits
from pggan.performance.scaling import Reduction, Scaling


def tables(plan: dict[str, Any]) -> list[RenderableType]:
    """The tables and notes of a plan, from top to bottom."""
    found = (time_table(plan), work_table(plan), scaling_table(plan["scaling"]), dominance_table(plan))
    return [*(Padding(table, (0, 0, 1, 0)) for table in found), Group(*map(Text, plan["notes"]))]


def time_table(plan: dict[str, Any]) -> Table:
    """The schedule, and how long it takes: a row per phase, and the sum."""
    total, kind = plan["total"], plan["hardware"]["device"].partition(":")[0]
    columns = "phase", "images", "batch", "rate", "steps", "ms/step", "time", "kWh"
    table = new_table(f"{plan['name']}, on one {kind} (*: measured)", *columns)
    for row in plan["phases"]:
        rates = dict.fromkeys(f"{row[key]:.3g}" for key in ("learning_rate_g", "learning_rate_d"))
        table.add_row(
            short_name(row),
            f"{row['images']:,}",
            str(row["batch"]),
            "/".join(rates),
            f"{row['steps']:,}",
            f"{three_digits(row['milliseconds_per_step'])}{' *' * (row['time_is'] == 'measured')}",
            duration(3600 * row["hours"]),
            three_digits(row["energy_kwh"]),
        )
    table.add_section()
    hours, energy = duration(3600 * total["hours"]), three_digits(total["energy_kwh"])
    table.add_row("total", f"{total['images']:,}", "", "", f"{total['steps']:,}", "", hours, energy)
    return table


def work_table(plan: dict[str, Any]) -> Table:
    """The cost of a step: a row per phase."""
    g, d, rows = plan["parameters"]["generator"], plan["parameters"]["discriminator"], plan["phases"]
    kinds = "generator_forward", "discriminator_forward", "backward", "penalty", "mean"
    weights = Unit(sum(row["parameters"].values()) for row in rows)
    gradient = Unit(row["gradient_bytes"] for row in rows)
    memory = Unit((row["memory_bytes"] for row in rows), base=1024)
    each = Unit(row["flops_per_step"]["mean"] / row["batch"] for row in rows)
    whole = Unit([1e18 * plan["total"]["exaflops"]])
    table = new_table(
        f"G {g:,} and D {d:,} parameters; of a step the weights in use, and {each.prefix}FLOP per image",
        *("phase", f"weights\n{weights.prefix}", f"grad.\n{gradient.prefix}B", f"memory\n{memory.prefix}iB"),
        *("G for-\nward", "D for-\nward", "back-\nward", "pen-\nalty", "mean", f"phase\n{whole.prefix}FLOP"),
    )
    for row in rows:
        table.add_row(
            short_name(row),
            weights.of(sum(row["parameters"].values())),
            gradient.of(row["gradient_bytes"]),
            memory.of(row["memory_bytes"]),
            *(each.of(row["flops_per_step"][kind] / row["batch"]) for kind in kinds),
            whole.of(row["flops"]),
        )
    table.add_section()
    peak = memory.of(plan["total"]["memory_bytes"])
    table.add_row("worst, sum", "", "", peak, *[""] * 5, whole.of(1e18 * plan["total"]["exaflops"]))
    return table


def scaling_table(scaling: dict[str, Any]) -> Table:
    """Strong beside weak scaling: a row per number of devices and gradient reduction."""
    names, runs = ("time", "device\nhours", "effi-\nciency", "comm."), scaling["runs"]
    title = f"Scaling on {scaling['interconnect']}: {scaling['link']['source']}"
    table = new_table(title, "n", "gradients", *names, *names)
    table.add_row("", "", "strong", "", "", "", "weak", "", "", "")
    for pair in zip(runs[: len(runs) // 2], runs[len(runs) // 2 :], strict=True):
        cells = []
        for run in pair:
            cells += [duration(3600 * run["hours"]), three_digits(run["device_hours"])]
            cells += [f"{100 * run[part]:.0f} %" for part in ("efficiency", "communication")]
        kind = pair[0]["reduction"]
        name = f"dgc {100 * scaling['ratio']:g} %" if kind == Reduction.dgc else kind
        table.add_row(str(pair[0]["devices"]) if kind == Reduction.fp32 else "", name, *cells)
    return table


def dominance_table(plan: dict[str, Any]) -> Table:
    """The number of devices from which on communication takes more than half of a step."""
    kinds = [(scaling, reduction) for scaling in Scaling for reduction in Reduction]
    table = new_table(
        "Devices from which on communication takes more than half of the run's steps (-: never)",
        *("interconnect", *(f"{scaling}\n{reduction}" for scaling, reduction in kinds)),
    )
    for name, found in plan["communication_dominates_from"].items():
        table.add_row(name, *(str(found[scaling][reduction] or "-") for scaling, reduction in kinds))
    return table


def short_name(row: dict[str, Any]) -> str:
    """The name of a phase in a table."""
    return f"{row['resolution']} {'fade' if row['fading'] else 'stable'}"


class Unit:
    """A unit for a column of numbers: the largest of them has two to four digits before the point."""

    def __init__(self, values: Iterable[float], base: int = 1000) -> None:
        power = max(int(log(max(*values, 10.0) / 10, base)), 0)
        self.prefix, self.factor = ["", "k", "M", "G", "T", "P", "E", "Z"][power], base**power

    def of(self, value: float) -> str:
        """`value` in this unit."""
        return three_digits(value / self.factor)
