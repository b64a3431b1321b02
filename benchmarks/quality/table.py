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
            parts.append(f"### {question[0].upper()}{question[1:]}\n\n{table(measured)}")
    return "\n\n".join(parts) + "\n"


def table(measured: dict[str, list[Found]]) -> str:
    """One table: a column per recipe, and a line per metric that all of them have."""
    every = [one for seeds in measured.values() for one in seeds]
    names = [name for name in every[0]["figures"] if all(name in one["figures"] for one in every)]
    facts: dict[str, list[str]] = {
        "data": [seeds[0]["data"] for seeds in measured.values()],
        "images": [f"{median(one['images'] for one in seeds):,.0f}" for seeds in measured.values()],
        "minutes": [f"{median(one['seconds'] for one in seeds) / 60:.1f}" for seeds in measured.values()],
        "machine": [", ".join(dict.fromkeys(one["machine"] for one in seeds)) for seeds in measured.values()],
        "seeds": [", ".join(str(one["seed"]) for one in seeds) for seeds in measured.values()],
    }
    for name in names:
        facts[f"`{name}`"] = [in_short([one["figures"][name] for one in seeds]) for seeds in measured.values()]
    lines = [["", *measured], ["---"] * (1 + len(measured)), *([name, *cells] for name, cells in facts.items())]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def in_short(values: list[float]) -> str:
    """The median, and what it is the median of."""
    middle = f"{median(values):.4g}"
    return middle if len(values) == 1 else f"{middle} ({', '.join(f'{value:.4g}' for value in values)})"
