"""Values with a notation of their own: numbers per resolution, grids, lists of seeds, a checkpoint of a run."""

from collections.abc import Mapping
from math import inf
from typing import Any, Literal

from pggan.config.validation import require
from pggan.core.architecture import MIN_RESOLUTION, is_power_of_two
from pggan.core.errors import UserError
from pggan.core.schedule import PerResolution

MAX_TILES = 10_000
MAX_SEEDS = 1_000_000  # 2 GiB of latents of 512 numbers
Checkpoint = int | Literal["newest", "best"]  # the images that it was saved at, or a word
RawPerResolution = Any  # one number for all resolutions, or {resolution: number}


def parse_grid(grid: str, key: str) -> tuple[int, int]:
    """Columns and rows of a grid written as '8x4'."""
    columns, _, rows = grid.partition("x")
    if not (columns.isdecimal() and rows.isdecimal() and int(columns) > 0 and int(rows) > 0):
        raise UserError(f"{key}={grid} is not a grid.", "Write columns x rows, for example 8x4.")
    require(int(columns) * int(rows) <= MAX_TILES, key, grid, f"a grid of at most {MAX_TILES} images")
    return int(columns), int(rows)


def parse_seeds(seeds: object, key: str = "seeds") -> list[int]:
    """Seeds, the value of `key`, written as 5, '0-63', '1,5,9-12' or [1, 5, 9]."""
    found: list[int] = []
    for part in map(str, seeds) if isinstance(seeds, list) else str(seeds).split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise UserError(f"{key}={seeds} can't be read: '{part}'.", f"Write {key}=5, {key}=0-63 or {key}=[1,5,9].")
        count = len(found) + int(last or first) - int(first) + 1
        require(count <= MAX_SEEDS, key, seeds, f"at most {MAX_SEEDS:,} seeds")
        found.extend(range(int(first), int(last or first) + 1))
    require(bool(found), key, seeds, "a list of at least one, for example [1,5,9]")
    return found


def listed(value: Any) -> list[Any]:
    """A value that may be one or several, as a list."""
    return list(value) if isinstance(value, list) else [value]


def generator_keys(config: object) -> dict[str, Any]:
    """The keys of a command's `config` that choose a generator, its stage and its class, as far as they are given."""
    values = {name: getattr(config, name, None) for name in ("run", "checkpoint", "resolution", "alpha", "label")}
    return {name: value for name, value in values.items() if value not in (None, "newest")}


def per_resolution(
    key: str, value: RawPerResolution, first: int, *, least: float, whole: bool = False
) -> PerResolution:
    """The `value` per resolution of `key` as a mapping that covers every resolution from `first` up.

    Raises UserError unless its entries are numbers (whole ones if `whole`) of at least `least`.
    """
    entries = dict(value) if isinstance(value, Mapping) else {MIN_RESOLUTION: value}
    for resolution, entry in entries.items():
        if not isinstance(resolution, int) or not is_power_of_two(resolution):
            remedy = f"Write resolutions as numbers, for example '{key}={{4: 16, 64: 8}}' (in quotes)."
            raise UserError(f"{key} has an entry for '{resolution}', which is not a resolution.", remedy)
        number = isinstance(entry, int) or (isinstance(entry, float) and not whole)
        wanted = f"a {'whole ' if whole else ''}number of at least {least}, below infinity"
        require(number and not isinstance(entry, bool) and least <= entry < inf, key, entry, wanted)
    if min(entries, default=inf) > first:
        remedy = "Add one: an entry holds from its resolution up to the next one listed."
        raise UserError(f"{key} has no entry for {first}x{first}.", remedy)
    return entries
