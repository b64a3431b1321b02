"""Draw the result of `pggan bench against=true`: `python -m benchmarks.plot RESULT.json PICTURE.svg`.

A bar per resolution: images per second of the training step, relative to the reference step.
"""

import json
import sys
from pathlib import Path

WIDTH, HEIGHT, BAR, LEFT, BASE = 640, 320, 46, 60, 260


def picture(result: dict) -> str:  # type: ignore[type-arg]
    """An SVG of the `ratio` of every stage of a `pggan bench against=true` result."""
    rows = [row for row in result["stages"] if "ratio" in row]
    top = max(3.0, *(row["ratio"] for row in rows))
    unit = (BASE - 40) / top
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22">Training step relative to the reference step, images per second, '
        f"{result['hardware']['threads']} CPU threads</text>",
    ]
    for level in range(int(top) + 1):
        y = BASE - level * unit
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ccc"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{level}x</text>')
    step = (WIDTH - LEFT - 20) / len(rows)
    for number, row in enumerate(rows):
        x, height = LEFT + step * (number + 0.5), row["ratio"] * unit
        parts.append(
            f'<rect x="{x - BAR / 2:.1f}" y="{BASE - height:.1f}" width="{BAR}" height="{height:.1f}" fill="#3b76af"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{BASE - height - 6:.1f}" text-anchor="middle">{row["ratio"]:.2f}</text>')
        side = row["resolution"]
        parts.append(f'<text x="{x:.1f}" y="{BASE + 18}" text-anchor="middle">{side}x{side}</text>')
        parts.append(f'<text x="{x:.1f}" y="{BASE + 36}" text-anchor="middle" fill="#777">batch {row["batch"]}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(picture(json.loads(Path(sys.argv[1]).read_text())))
