"""The measured rows as tables in Markdown, one per data set: a line per row of rows.py, a column per figure."""

import json
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.quality.rows import ROWS

Found = dict[str, Any]
# {start of a figure's full name: heading of its column}; the result files have more figures.
COLUMNS = {
    "kid@efficientnet-lite0": "KID, each seed",
    "kid@benchmarks.quality.nsfwjs.inception": "KID by Inception",
    "recall@efficientnet-lite0": "recall",
    "copies@pixels": "copies by pixels",
    "swd/mean@": "SWD",
    "swd_floor/mean@": "SWD of reals",
    "ms_ssim@": "MS-SSIM",
    "ms_ssim_reals@": "MS-SSIM of reals",
}


def tables(results: Path) -> str:
    """All results in the folder `results`: the median of the seeds of each row and figure, and the KID of each seed."""
    found = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    parts = []
    for data in dict.fromkeys(row.data for row in ROWS):
        names = [row.name for row in ROWS if row.data == data]
        if measured := {name: seeds for name in names if (seeds := [one for one in found if one["row"] == name])}:
            parts.append(f"### {data[0].upper()}{data[1:]}\n\n{table(measured)}")
    return "\n\n".join(parts) + "\n"


def table(measured: dict[str, list[Found]]) -> str:
    """One table, from the results of every seed by the name of the row."""
    columns = [start for start in COLUMNS if any(figures(seeds, start) for seeds in measured.values())]
    lines = [["row", "images", "minutes", *(COLUMNS[start] for start in columns)]]
    lines.append(["---"] * len(lines[0]))
    for name, seeds in measured.items():
        images = f"{median(one['images'] for one in seeds):,.0f}"
        minutes = f"{median(one['seconds'] for one in seeds) / 60:.1f}"
        lines.append([name, images, minutes, *(in_short(figures(seeds, start), start) for start in columns)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def figures(seeds: list[Found], start: str) -> list[float]:
    """The values of the figure whose name begins with `start`, one per seed that has this figure."""
    return [value for one in seeds for name, value in one["figures"].items() if name.startswith(start)]


def in_short(values: list[float], start: str) -> str:
    """The median; KID also shows each seed.  A dash stands for a figure that was not measured."""
    if not values:
        return "–"
    middle, *each = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (median(values), *values))
    return f"{middle} ({', '.join(each)})" if len(values) > 1 and start.startswith("kid") else middle
