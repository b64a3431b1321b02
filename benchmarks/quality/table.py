"""The measured rows as tables in Markdown, one per question."""

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.quality.rows import ROWS

Found = dict[str, Any]
MISSING = "–"
LEFT_OUT = re.compile(r"swd(_floor)?/\d|neighbour_distance")  # which the files have, and no sentence needs


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
    """One table: a column per recipe, and a line per figure."""
    names = dict.fromkeys(name for seeds in measured.values() for one in seeds for name in one["figures"])
    names = {name: None for name in names if not LEFT_OUT.match(name)}
    facts: dict[str, list[str]] = {
        "data": [seeds[0]["data"] for seeds in measured.values()],
        "images": [f"{median(one['images'] for one in seeds):,.0f}" for seeds in measured.values()],
        "minutes": [f"{median(one['seconds'] for one in seeds) / 60:.1f}" for seeds in measured.values()],
        "machine": [", ".join(dict.fromkeys(one["machine"] for one in seeds)) for seeds in measured.values()],
        "seeds": [", ".join(str(one["seed"]) for one in seeds) for seeds in measured.values()],
    }
    for name in names:
        facts[f"`{name}`"] = [in_short([one["figures"].get(name) for one in seeds]) for seeds in measured.values()]
    lines = [["", *measured], ["---"] * (1 + len(measured)), *([name, *cells] for name, cells in facts.items())]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def in_short(values: list[float | None]) -> str:
    """The median, and what it is the median of unless all are the same; a dash stands for what was not measured."""
    known = [value for value in values if value is not None]
    if not known:
        return MISSING
    middle = f"{median(known):.4g}"
    each = [MISSING if value is None else f"{value:.4g}" for value in values]
    return middle if len({*each}) == 1 else f"{middle} ({', '.join(each)})"
