"""Where pictures go when no place is named."""

import re
from pathlib import Path

CONFIG_FILE = "config.yaml"  # of a run directory


def next_output(run: str, name: str, ending: str = "") -> Path:
    """A path that is not taken yet, such as samples/`name`-001`ending` in the run directory that `run` lies in.

    Of a generator that lies in no run, it is in the working directory.
    """
    path = Path(run)
    places = (path, path.parent, path.parent.parent)  # a run directory, a generator file in it, a checkpoint
    home = next((place / "samples" for place in places if (place / CONFIG_FILE).is_file()), Path())
    pattern = re.compile(rf"{re.escape(name)}-(\d+){re.escape(ending)}")
    there = [match for file in home.glob(f"{name}-*") if (match := pattern.fullmatch(file.name))]
    return home / f"{name}-{max([int(match[1]) for match in there], default=0) + 1:03d}{ending}"
