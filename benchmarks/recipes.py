"""What the heads of the recipes say about time and memory, beside what `pggan plan` predicts now.

    python -m benchmarks.recipes                       # all of them: minutes, most of them for 1024x1024
    python -m benchmarks.recipes cifar10_32 avatars_64

A recipe whose time was not measured has this sentence in its head: "Predicted by `pggan plan device=h200`: 7.4 hours
and 3.5 GiB on one H200", or "1.9 hours and 3.5 GiB each on 4 H200": hours of strong scaling over the default network,
memory of a card's part of the batch.
Prints a line per recipe; returns 1 if a figure is not what is predicted, rounded to as many digits.
"""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import Any, NamedTuple

from pggan.cli.commands import CONFIGS, choices_of
from pggan.cli.compose import compose
from pggan.cli.main import main as pggan

STATED = re.compile(
    r"Predicted by `pggan plan device=(?P<device>\w+)`: (?P<time>[\d.]+) (?P<unit>hours|minutes|seconds) and "
    r"(?P<memory>[\d.]+) (?P<size>GiB|MiB) (?:on one|each on (?P<cards>\d+)) \w+\."
)
SECONDS = {"hours": 3600, "minutes": 60, "seconds": 1}
BYTES = {"GiB": 2**30, "MiB": 2**20}


class Stated(NamedTuple):
    """The figures in the head of a recipe: as text, and their units."""

    device: str
    cards: int
    time: str
    unit: str
    memory: str
    size: str

    @classmethod
    def of(cls, recipe: str) -> "Stated | None":
        """Those of `recipe`; None if its head has no such sentence."""
        text = (CONFIGS / "experiment" / f"{recipe}.yaml").read_text()
        head = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
        found = STATED.search(head)
        if found is None:
            return None
        parts: dict[str, Any] = {**found.groupdict(), "cards": int(found["cards"] or 1)}
        return cls(**parts)

    def predicted(self, plan: dict[str, Any], plan_of_part: dict[str, Any]) -> tuple[str, str]:
        """Time and memory of a plan, and of one of a card's part of its batch, with as many digits."""
        wanted = {"scaling": "strong", "devices": self.cards, "reduction": "fp32"}
        (hours,) = (run["hours"] for run in plan["scaling"]["runs"] if wanted.items() <= run.items())
        memory = plan_of_part["total"]["peak_memory_bytes"] / BYTES[self.size]
        return _like(self.time, hours * 3600 / SECONDS[self.unit]), _like(self.memory, memory)


def _like(text: str, value: float) -> str:
    """`value` with as many digits behind the point as `text`."""
    return f"{value:.{len(text.partition('.')[2])}f}"


def plan_of(recipe: str, stated: Stated, *more: str) -> dict[str, Any]:
    """What `pggan plan` predicts, with `more` overrides."""
    words = [f"experiment={recipe}", f"device={stated.device}", f"processes=[{stated.cards}]", "json=true"]
    with redirect_stdout(StringIO()) as printed:
        assert pggan(["plan", *words, *more]) == 0
    plan: dict[str, Any] = json.loads(printed.getvalue())
    return plan


def plan_of_part(recipe: str, stated: Stated) -> dict[str, Any]:
    """That of one card's part of the batch."""
    table: dict[int, int] = compose("train", [f"experiment={recipe}"])["schedule"]["batch"]
    part = ", ".join(f"{resolution}: {batch // stated.cards}" for resolution, batch in table.items())
    return plan_of(recipe, stated, f"schedule.batch={{{part}}}")


def compare(recipes: list[str]) -> Iterator[tuple[str, bool]]:
    """A line per recipe that states figures, and whether they are those that are predicted."""
    for recipe in recipes:
        stated = Stated.of(recipe)
        if stated is None:
            yield f"{recipe:<21} has no prediction in its head", True
        else:
            plan = plan_of(recipe, stated)
            time, memory = stated.predicted(plan, plan if stated.cards == 1 else plan_of_part(recipe, stated))
            says = f"{stated.time} {stated.unit}, {stated.memory} {stated.size}"
            now = f"{time} {stated.unit}, {memory} {stated.size}"
            yield f"{recipe:<21} {stated.cards} {stated.device}: {now}; the head says {says}", now == says


def main() -> int:
    """Compare the recipes that are named, or all; returns the exit code."""
    right = True
    for line, same in compare(sys.argv[1:] or choices_of("experiment")):
        print(line if same else f"{line}  <- differs", flush=True)
        right &= same
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
