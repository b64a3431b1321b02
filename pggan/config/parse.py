"""Values with a notation of their own: numbers per resolution, grids, a checkpoint of a run."""

from collections.abc import Mapping
from math import inf
from typing import Any, Literal

from pggan.core.architecture import MIN_RESOLUTION, is_power_of_two
from pggan.core.errors import UserError, require
from pggan.core.schedule import PerResolution

MAX_TILES = 10_000
Checkpoint = int | Literal["newest", "best"]  # the images that it was saved at, or a word
RawPerResolution = Any  # one number for all resolutions, or {resolution: number}


def parse_grid(grid: str, key: str) -> tuple[int, int]:
    """Columns and rows of a grid written as '8x4'."""
    columns, _, rows = grid.partition("x")
    if not (columns.isdecimal() and rows.isdecimal() and int(columns) > 0 and int(rows) > 0):
        raise UserError(f"{key}={grid} is not a grid.", "Write columns x rows, for example 8x4.")
    require(int(columns) * int(rows) <= MAX_TILES, key, grid, f"a grid of at most {MAX_TILES} images")
    return int(columns), int(rows)


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
