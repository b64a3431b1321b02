"""The measured rows as tables in Markdown, one per question."""

import json
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.quality.rows import ROWS

Found = dict[str, Any]


def tables(results: Path) -> str:
    """Everything that is in `results`: the median of the seeds, and each of them, per row and metric."""
    found = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    parts = []
    for question in dict.fromkeys(row.question for row in ROWS):
        measured = {
            row.name: [one for one in found if one["row"] == row.name] for row in ROWS if row.question == question
        }
        measured = {name: seeds for name, seeds in measured.items() if seeds}
        if measured:
            parts.append(f"### {question.capitalize()}\n\n{table(measured)}")
    return "\n\n".join(parts) + "\n"


def table(measured: dict[str, list[Found]]) -> str:
    """One table: a line per row, with the metrics that all of its rows have."""
    every = [one for seeds in measured.values() for one in seeds]
    names = [name for name in every[0]["figures"] if all(name in one["figures"] for one in every)]
    lines = [
        " | ".join(["| row", "data", "images", "minutes", *(f"`{name}`" for name in names), "seeds |"]),
        "|" + "---|" * (len(names) + 5),
    ]
    for row, seeds in measured.items():
        images = f"{median(one['images'] for one in seeds):,.0f}"
        minutes = f"{median(one['seconds'] for one in seeds) / 60:.1f}"
        cells = [in_short([one["figures"][name] for one in seeds]) for name in names]
        numbers = ", ".join(str(one["seed"]) for one in seeds)
        lines.append(" | ".join([f"| {row}", seeds[0]["data"], images, minutes, *cells, f"{numbers} |"]))
    return "\n".join(lines)


def in_short(values: list[float]) -> str:
    """The median, and what it is the median of."""
    middle = f"{median(values):.4g}"
    return middle if len(values) == 1 else f"{middle} ({', '.join(f'{value:.4g}' for value in values)})"
