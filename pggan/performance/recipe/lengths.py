"""The images of every phase, which fill the time."""

from collections.abc import Mapping

from pggan.core.architecture import MIN_RESOLUTION
from pggan.core.errors import UserError
from pggan.core.formatting import duration
from pggan.core.schedule import PerResolution, value_at
from pggan.performance.recipe.choices import Choices
from pggan.performance.recipe.growth import fade_images, growth_seconds, scales_lengths, stable_images, start_seconds
from pggan.performance.recipe.rounding import plain, two_digits
from pggan.performance.recipe.situation import NetworkSizes, Situation
from pggan.performance.recipe.sizes import least_seconds

GROWTH_SHARE = 0.3  # of the time, as in the demo: longer runs show more images on the way to the final resolution
LONGER_FROM = 1.5  # times the lengths that were tried; below, those stay: five minutes begin with the demo's bits
MAX_IMAGES = 600_000  # of a phase on the way, those of the official presets
PUBLISHED_FROM = 512  # final resolution from which loss and rates are those of the official preset
# Share of the images at the final resolution over which the rates fall to 0, as in the demo, up to PUBLISHED_FROM: at
# constant rates, eyes stay blurred and backgrounds mottled (lab book).
FALLING_SHARE = 0.14


def require_time(situation: Situation, side: int, batch: PerResolution, each: Mapping[int, float]) -> None:
    """Raise UserError unless there is time for a step of every phase up to `side`.

    Args: each: seconds of an image by level.
    """
    phases = {level: 1 if level == min(each) else 2 for level in each}
    once = sum(phases[level] * each[level] * value_at(batch, level) for level in each)
    once += start_seconds(situation, sum(phases.values()))
    if once > situation.seconds:
        least = plain((2 * situation.other_seconds + 10 * once) / 3600)  # starting may take longer the next time
        lower = ", or a lower schedule.final_resolution" if side > min(each) else ""
        raise UserError(
            f"hours= is too short: one step of every phase up to {side}x{side} takes {duration(once)} here, "
            f"and starting {duration(situation.other_seconds)}.",
            f"Give at least hours={least}{lower}.",
        )


def choose_lengths(
    situation: Situation, choices: Choices, sizes: NetworkSizes, batch: PerResolution, each: Mapping[int, float]
) -> int:
    """Choose the images of every phase that has no given ones; returns the sum of all.

    Args: each: seconds of an image by level.
    """
    if scales_lengths(situation):
        return scale_lengths(situation, choices, each)
    worth, side = least_seconds(situation, sizes) <= situation.seconds, sizes.resolution
    seconds = situation.seconds - start_seconds(situation, 2 * len(each) - 1)
    tables = {"schedule.stable_images": stable_images(situation), "schedule.fade_images": fade_images(situation)}
    given = {key for key in tables if situation.given.has(key)}
    held = growth_seconds(each, *(table if key in given else {MIN_RESOLUTION: 0} for key, table in tables.items()))
    growth = growth_seconds(each, *tables.values()) - held
    fitting = (GROWTH_SHARE * seconds - held) / growth if growth else 1.0
    longer = fitting if fitting >= LONGER_FROM else 1.0
    factor = longer if worth else min(fitting, 1.0)

    def of_level(key: str, level: int) -> int:
        images = value_at(tables[key], level)
        if key in given:
            return int(images)
        return two_digits(min(factor * images, MAX_IMAGES), least=int(value_at(batch, level)))

    levels = sorted(each)
    stable = {level: of_level("schedule.stable_images", level) for level in levels[:-1]}
    fade = {level: of_level("schedule.fade_images", level) for level in levels[1:]}
    growing = growth_seconds(each, stable, fade)
    stable[side] = two_digits((seconds - growing) / each[side], least=int(value_at(batch, side)))
    why = f"growth has {growing / seconds:.0%} of the time"
    if not worth:
        why = f"fewer than are worth it: {side}x{side} with these networks should have more time"
    reason = f"{why}, {side}x{side} the rest"
    choices.take_all({"schedule.stable_images": stable, "schedule.fade_images": fade or 0}, reason)
    grows = side > levels[0]
    if (grows or side < PUBLISHED_FROM) and not (given or situation.given.has("schedule.lr_decay_images")):
        choose_growth_share(choices, growing / seconds if grows else None, side)
    if "schedule.stable_images" in given or situation.config.schedule.total_images is not None:
        ends = f"{side}x{side} lasts until the hours are over, however many images it is given"
        if growing > seconds:
            ends = over_before(side)
        choices.replace("schedule.total_images", None, ends)
    if side < PUBLISHED_FROM:
        falling = two_digits(FALLING_SHARE * stable[side], least=0)
        choices.take("schedule.lr_decay_images", falling, f"the last {FALLING_SHARE:.0%} of {side}x{side}, the demo's")
    return sum(stable.values()) + sum(fade.values())


def scale_lengths(situation: Situation, choices: Choices, each: Mapping[int, float]) -> int:
    """Take the lengths of a recipe times the factor with which they fill the time; returns the sum of all.

    Lengths that the command line has stay, and take their part of the time.

    Args: each: seconds of an image by level.
    """
    config, typed = situation.config.schedule, situation.given.in_command
    schedule, keeps_fades = config.build(), typed("schedule.fade_images")
    # The end of a recipe is that of its own fades: beside longer ones, it would cut off the last level.
    end = schedule.phases[-1].end if keeps_fades else schedule.total
    images = dict(zip(schedule.phases, schedule.images_between(0, end), strict=True))
    scaled = [phase for phase in images if not (keeps_fades and phase.fading)]
    own = sum(images[phase] * each[phase.resolution] for phase in scaled)
    held = sum(images[phase] * each[phase.resolution] for phase in images if phase not in scaled)
    seconds = situation.seconds - start_seconds(situation, len(images))
    factor = max(seconds - held, 0.0) / own if own else 1.0
    images |= {phase: two_digits(factor * images[phase], least=phase.batch) for phase in scaled}
    fill = "fill the time beside the given fades" if keeps_fades else "fill the time"
    reason = f"the recipe's times {factor:.3g}, which {fill}: as they are, they take {duration(own)} here"
    if not factor:
        reason = over_before(config.final_resolution)
    lengths = {
        "schedule.stable_images": {phase.resolution: images[phase] for phase in images if not phase.fading},
        "schedule.fade_images": {phase.resolution: images[phase] for phase in images if phase.fading},
        "schedule.lr_decay_images": two_digits(factor * config.lr_decay_images, least=0),
    }
    for key, value in lengths.items():
        if not typed(key):
            choices.replace(key, value or 0, reason)
    growing = [phase for phase in images if phase.resolution < config.final_resolution or phase.fading]
    if (growing or config.lr_decay_images) and not (keeps_fades or typed("schedule.lr_decay_images")):
        spent = sum(images[phase] * each[phase.resolution] for phase in growing)
        choose_growth_share(choices, spent / seconds if growing else None, config.final_resolution)
    ends = over_before(config.final_resolution) if held > seconds else "decided on the way, to end in time"
    choices.replace("schedule.total_images", None, ends)
    return sum(images.values())


def choose_growth_share(choices: Choices, planned: float | None, side: int) -> None:
    """Choose the share of the hours that growth may take: so much more than `planned` that `side` keeps half of its.

    Args: planned: None for networks that do not grow, whose learning rates fall.
    """
    if planned is None:
        reason = "nothing grows; with a share, the fall of the learning rates keeps its part of the hours"
        choices.take("schedule.max_growth_share", 1.0, reason)
        return
    reason = f"growth, planned to take {planned:.0%}, becomes shorter where it would take more than this"
    share = round(min(1 + planned, 2.0) / 2, 2)
    choices.take("schedule.max_growth_share", share, f"{reason}: {side}x{side} keeps half of its time")


def over_before(side: int) -> str:
    """The reason for the end of a run that has no time for growing up to the final resolution `side`."""
    return f"the hours are over before {side}x{side} is reached and faded in"
