"""The levels on the way to the final resolution: how many images they have, and what these take."""

from collections.abc import Mapping

from pggan.core.schedule import PerResolution, value_at
from pggan.performance.recipe.situation import Situation

# Images of the levels on the way.  Up to 32x32 those of avatars_32, up to 64x64 about the ORL run's; above, twice as
# many from level to level.
STABLE = {4: 1500, 8: 2500, 16: 5000, 32: 8000, 64: 16_000, 128: 32_000, 256: 64_000, 512: 128_000}
FADE = {8: 1500, 16: 3000, 32: 5000, 64: 8000, 128: 16_000, 256: 32_000, 512: 64_000, 1024: 128_000}


def stable_images(situation: Situation) -> PerResolution:
    """The images of the stable phases: those that are given, or those to be multiplied."""
    given = situation.given.has("schedule.stable_images")
    return situation.config.schedule.build().stable_images if given else STABLE


def fade_images(situation: Situation) -> PerResolution:
    """The images of the fades, likewise."""
    given = situation.given.has("schedule.fade_images")
    return situation.config.schedule.build().fade_images if given else FADE


def growth_seconds(each: Mapping[int, float], stable: PerResolution, fade: PerResolution) -> float:
    """The time of growing to the highest level of `each`, which are the seconds of an image by level.

    Args: stable, fade: the images of the phases.
    """
    levels = sorted(each)
    parts = ((stable, levels[:-1]), (fade, levels[1:]))
    return sum(value_at(images, side) * each[side] for images, sides in parts for side in sides)


def start_seconds(situation: Situation, phases: int) -> float:
    """Seconds that the first steps of so many phases take besides: on a GPU, kernels are tried, and steps captured."""
    return phases * {"cuda": 3.0}.get(situation.machine.kind, 0.0)


def scales_lengths(situation: Situation) -> bool:
    """Whether a recipe, and not the command line, has the lengths of the phases."""
    key = "schedule.stable_images"
    return situation.given.has(key) and not situation.given.in_command(key)
