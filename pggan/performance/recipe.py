"""The recipe that `hours=` chooses: sizes and lengths that fill the time, and a table of rules, each with its evidence.

For 64 feature maps on CPUs, the rules come from the lab book (docs/lab.md); from 512x512 on, from the official preset
for one GPU; between them, from StyleGAN2-ADA's automatic configuration (Karras et al. 2020).
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pggan.config import TrainConfig
from pggan.config.train import MIN_GAMMA, gamma_by_rule
from pggan.core.architecture import MIN_RESOLUTION, resolutions_between
from pggan.core.errors import UserError
from pggan.core.schedule import PerResolution, value_at
from pggan.core.text import duration

# Images of the levels on the way, as in avatars_32 and the ORL run; above 64x64 twice as many at every level.
STABLE = {4: 1500, 8: 2500, 16: 5000, 32: 8000, 64: 16_000, 128: 32_000, 256: 64_000, 512: 128_000}
FADE = {8: 1500, 16: 3000, 32: 5000, 64: 8000, 128: 16_000, 256: 32_000, 512: 64_000, 1024: 128_000}
MAX_IMAGES = 600_000  # of a phase on the way, as in the official presets
# Growth has this share of the time, as in the demo, where so many times the lengths above fit; else those stay: 4 to
# 27 % more images on the way made five minutes worse than the demo (means of ten runs: 294 and 263).
GROWTH_SHARE, LONGER_FROM = 0.3, 1.5
# Images at a final resolution that are worth choosing it: half of what avatars_32 and the ORL run show; above 64x64
# estimates.  Flat areas of drawn images show every error: 30,000 avatars at 64x64 end at a KID of 1055.
FINAL = {4: 500, 8: 2000, 16: 5000, 32: 15_000, 64: 20_000, 128: 10**5, 256: 3 * 10**5, 512: 10**6, 1024: 3 * 10**6}
DRAWN_FINAL = FINAL | {32: 20_000, 64: 60_000}
# Feature maps of the widest levels, and how many times FINAL has to fit into the time for wider ones: in half an hour,
# 180,000 images with 128 maps end at a KID of 347, 476,000 with 64 at 217.
WIDTHS, WIDER = (64, 128, 256, 512), 10
MIN_WIDTH = {4: 64, 128: 128, 256: 256, 512: 512}  # by final resolution
BASE, MAX_BASE = 8, 8192  # fmap_base over final resolution: 16 maps at the end, as in the demo; the paper's
# On a CPU, 8 make twice the updates of 16: 263 portraits KID 372 and 378 instead of 678 and 764, avatars 477 instead of
# 530; long runs end worse (avatars after 476,000 images 268 instead of 217).  On a GPU, the official preset's.
SHORT_RUN, SHORT_RUN_BATCH, LONG_RUN_BATCH = 200_000, 8, 16
GPU_BATCH = {4: 128, 32: 64, 64: 32, 128: 16, 256: 8, 512: 4}
# Pretrained features won on photographs of 64x64 (ORL by Inception: KID 2.4 and 0.4 with, 9.7 without), and lost below.
FEATURES, FEATURES_FROM = "efficientnet-lite0", 64
FALLING_SHARE = 0.14  # of the images at the final resolution, over which the rates fall to 0, as in the demo
PUBLISHED_FROM = 512  # final resolution from which the official preset says loss and rates
RATES = {64: 0.006, 128: 0.005, 256: 0.0035, 512: 0.0025}  # by maps: the ORL run's, StyleGAN2-ADA's, and between them
FEW_IMAGES = 5000  # fewer photographs are augmented
STABLE_KEY, FADE_KEY = "schedule.stable_images", "schedule.fade_images"


class Choice(NamedTuple):
    """A key that was chosen, and why."""

    key: str
    value: Any
    reason: str


class DataFacts(NamedTuple):
    """A set of images."""

    images: int  # that can be read and are large enough; of many files, about
    resolution: int  # largest power of two that they serve without being enlarged
    channels: int
    num_classes: int  # to train with
    drawn: bool  # avatars, not photographs
    note: str  # in words
    mixed: bool = False  # files of different channels, so that somebody has to say what all become


class NetworkSizes(NamedTuple):
    """The sizes of networks, and whether D looks at features: with the batch, they decide what an image costs."""

    resolution: int
    fmap_base: int
    fmap_max: int
    features: bool = False  # pretrained ones, from FEATURES_FROM on


# Seconds of an image at every level of networks, with so many images per batch.
Costs = Callable[[NetworkSizes, PerResolution], Mapping[int, float]]


@dataclass(frozen=True)
class Situation:
    """The images, machine, time and keys that a recipe is chosen for.

    Args: config: as composed without choices; given: the keys that stay; scales: whether `config` is a recipe whose
    lengths are scaled to the time; kind: of the devices, cpu, cuda or mps; seconds: that training may take;
    other_seconds: of the hours, besides; has_features: whether the weights of FEATURES are installed.
    """

    config: TrainConfig
    given: Set[str]
    facts: DataFacts
    kind: str
    ranks: int
    costs: Costs
    seconds: float
    other_seconds: float = 0.0
    has_features: bool = True
    scales: bool = False

    def width(self, sizes: NetworkSizes, resolution: int) -> int:
        """The feature maps at `resolution` of networks of these sizes."""
        model = replace(self.config.model, fmap_base=sizes.fmap_base, fmap_max=sizes.fmap_max)
        return model.architecture(sizes.resolution, self.facts.channels, self.facts.num_classes).width(resolution)


@dataclass
class Recipe:
    """The keys that are chosen, in their order, and what decides the time of steps."""

    situation: Situation
    sizes: NetworkSizes
    batch: PerResolution
    choices: list[Choice] = field(default_factory=list)

    def take(self, values: Mapping[str, Any], reason: str) -> None:
        """Choose values by key, but for keys that are given."""
        self.choices += [Choice(*each, reason) for each in values.items() if each[0] not in self.situation.given]


def choose_recipe(situation: Situation) -> Recipe:
    """Choose all keys that are not given; raises UserError where there is no time for a step of every phase."""
    s = situation
    recipe = choose_sizes(s)
    short = Recipe(s, recipe.sizes, batch_sizes(s, recipe.sizes.resolution))
    require_time(short)
    is_short = choose_lengths(short) < SHORT_RUN
    recipe.batch = batch_sizes(s, recipe.sizes.resolution, short=is_short)
    reason = f"better in runs of {'fewer' if is_short else 'more'} than {SHORT_RUN:,} images"
    reason = reason if s.kind == "cpu" else "the official preset's for one GPU"
    recipe.take({"schedule.batch": recipe.batch}, f"{reason}, where images and ranks allow")
    images = choose_lengths(recipe)
    for holds, values, reason in rules(recipe, images):
        if holds:
            recipe.take(values, reason)
    return recipe


def rules(recipe: Recipe, images: int) -> list[tuple[bool, dict[str, Any], str]]:
    """The table: whether a rule holds, its keys, and its reason or evidence (KID); `images`: of the run."""
    s, sizes, side = recipe.situation, recipe.sizes, recipe.sizes.resolution
    facts, given, drawn, photos = s.facts, s.given, s.facts.drawn, not s.facts.drawn
    published, small, is_short = side >= PUBLISHED_FROM, side <= FEATURES_FROM, images < SHORT_RUN
    maps, batch = s.width(sizes, MIN_RESOLUTION), int(value_at(recipe.batch, side))
    loss = s.config.loss.name if "loss" in given else "wgan_gp" if published else "logistic"
    # Photographs up to 64x64: 573, 290, 259, 222 with gamma 0.1, 1, 4, 12; avatars 578 and 463 with 0.2, 1.
    least = 12.0 if photos and small and loss == "logistic" else MIN_GAMMA
    gamma = float(f"{max(least, gamma_by_rule(side, batch)):.2g}")
    width = max((width for width in WIDTHS if width <= maps), default=WIDTHS[0])
    by_demo, rate = drawn and width == WIDTHS[0], RATES[width]
    rate_g, rate_d = (0.001, 0.001) if published else (0.02, 0.01) if by_demo else (rate, rate)
    rates_by = "official preset" if published else "demo" if by_demo else f"ORL, StyleGAN2-ADA: {maps} maps"
    ada = photos and facts.images < FEW_IMAGES and loss != "wgan_gp"
    adapts = "ada" in (s.config.augmentation.name, "ada" * (ada and "augmentation" not in given))
    rampup, half_life = two_digits(min(images / 2, 500_000)), two_digits(min(max(images / 60, 1000), 10_000))
    ticks = round(min(max(s.seconds / 120, 60), 600))  # one every two minutes in long runs
    return [
        (published, {"loss": "wgan_gp"}, f"at {side}x{side}, what was published"),
        (not published, {"loss": "logistic"}, "the demo's, with lazy R1: two thirds of the time"),
        (loss != "wgan_gp", {"loss.gamma": gamma}, f"0.0002 x {side}^2 / {batch}, at least {least:g}: less was worse"),
        (loss == "logistic", {"loss.reg_interval": 8}, "as in the demo and the ORL run"),
        (
            "schedule.learning_rate_g" not in given,  # the rate of D follows a given rate of G
            {"schedule.learning_rate_g": rate_g, "schedule.learning_rate_d": rate_d},
            rates_by,
        ),
        (drawn and not published, {"model.bilateral": 4}, "flat areas: KID 232 with, 530 without"),
        (drawn and not published and sizes.fmap_max < 128, {"model.residual": True}, "KID 591 with, 660 without"),
        (photos and small and facts.channels in (1, 3), {"model.blur": True}, "KID 710 with, 810 without"),
        (drawn, {"data.mirror": False}, "as in the demo"),
        (ada, {"augmentation": "ada"}, f"fewer than {FEW_IMAGES:,} photographs: D would learn them by heart"),
        (
            adapts and getattr(s.config.augmentation, "p", None) is None,
            {"augmentation.rampup_images": rampup},
            "p can rise to its limit within the run",
        ),
        (facts.mixed, {"data.channels": facts.channels}, "some are grey or transparent: colours on white"),
        (True, {"ema.half_life_images": half_life}, "a sixtieth of the run, 1,000 to 10,000"),
        (True, {"ema.rampup": 0.2 if is_short else 0.05}, "the demo's" if is_short else "StyleGAN2-ADA's"),
        (True, {"monitor.tick_images": one_two_five(images / ticks)}, f"about {ticks} in the run"),
        (True, {"monitor.grid_images": one_two_five(images / (ticks // 5))}, f"about {ticks // 5} in the run"),
        (True, {"checkpoint.every_images": one_two_five(images / 3)}, "about 3 in the run"),
    ]


def choose_sizes(s: Situation) -> Recipe:
    """Choose the final resolution, the widths and pretrained features: the most for which there is time."""
    first, sides = s.config.schedule.first_resolution, [s.config.schedule.final_resolution]
    if "schedule.final_resolution" not in s.given:
        sides = [*reversed(resolutions_between(first, max(min(s.facts.resolution, 1024), first)))]
    needs = {side: least_seconds(s, candidates(s, side)[0]) for side in sides}
    side = next((side for side in sides if needs[side] <= s.seconds), sides[-1])
    narrow, *wider = candidates(s, side)
    sizes = [narrow, *(each for each in wider if least_seconds(s, each, WIDER) <= s.seconds)][-1]
    recipe = Recipe(s, sizes, {})
    above = f"{2 * side}x{2 * side} would take at least {duration(needs[2 * side])}" if 2 * side in needs else ""
    recipe.take({"schedule.final_resolution": side}, above or s.facts.note)
    maps = f"{s.width(sizes, MIN_RESOLUTION)} feature maps at 4x4, {s.width(sizes, side)} at {side}x{side}"
    if wider and sizes != wider[-1]:
        maps += f"; of wider networks, fewer than {WIDER * final_images(s, side):,} images fit into the time"
    recipe.take({"model.fmap_base": sizes.fmap_base, "model.fmap_max": sizes.fmap_max}, maps)
    is_logistic = "loss" not in s.given or s.config.loss.name == "logistic"
    won = side == FEATURES_FROM and not s.facts.drawn and s.facts.channels in (1, 3) and is_logistic
    if won and not s.has_features:
        reason = f'{FEATURES} would give clearer faces, and is not installed: pip install "pggan[metrics]"'
        recipe.take({"model.features": None}, reason)
    elif won and "model.features" not in s.given and least_seconds(s, sizes._replace(features=True)) <= s.seconds:
        recipe.sizes, reason = sizes._replace(features=True), "D looks at pretrained features, too: clearer faces"
        recipe.take({"model.features": FEATURES, "model.features_from": FEATURES_FROM}, reason)
    return recipe


def candidates(s: Situation, side: int) -> list[NetworkSizes]:
    """Sizes of networks for a final resolution, the narrowest first; of the two numbers, given ones stay."""
    model, keys = s.config.model, {"model.fmap_base", "model.fmap_max"}
    if keys <= s.given:
        return [NetworkSizes(side, model.fmap_base, model.fmap_max)]
    widths = [width for width in WIDTHS if width >= value_at(MIN_WIDTH, side)]
    widths = [model.fmap_max] if "model.fmap_max" in s.given else widths
    bases = [min(BASE * side * width // WIDTHS[0], MAX_BASE) for width in widths]
    bases = [model.fmap_base] * len(widths) if "model.fmap_base" in s.given else bases
    return [NetworkSizes(side, base, width) for base, width in zip(bases, widths, strict=True)]


def least_seconds(s: Situation, sizes: NetworkSizes, times: int = 1) -> float:
    """The time in which networks grow, and see `times` as many images as the final resolution is worth."""
    each = s.costs(sizes, batch_sizes(s, sizes.resolution))
    return growth_seconds(each, *lengths_of(s)) + times * final_images(s, sizes.resolution) * each[sizes.resolution]


def final_images(s: Situation, side: int) -> int:
    """The images at a final resolution that are worth choosing it."""
    return (DRAWN_FINAL if s.facts.drawn else FINAL)[side]


def lengths_of(s: Situation) -> tuple[PerResolution, PerResolution]:
    """The images of the stable phases and of the fades: those that are given, or those to be multiplied."""
    schedule = s.config.schedule.build()
    stable = schedule.stable_images if s.scales or STABLE_KEY in s.given else STABLE
    return stable, schedule.fade_images if s.scales or FADE_KEY in s.given else FADE


def growth_seconds(each: Mapping[int, float], stable: PerResolution, fade: PerResolution) -> float:
    """The time of growing to the highest level of `each`, which are the seconds of an image by level."""
    levels = sorted(each)
    parts = ((stable, levels[:-1]), (fade, levels[1:]))
    return sum(value_at(images, side) * each[side] for images, sides in parts for side in sides)


def batch_sizes(s: Situation, resolution: int, *, short: bool = True) -> dict[int, int]:
    """The given or the best images per batch, by the levels up to `resolution` from which they hold.

    At least a group of minibatch stddev for every rank, at most as many whole groups as the images fill.
    """
    if "schedule.batch" in s.given:
        return {side: int(batch) for side, batch in s.config.schedule.build().batch.items()}
    batch = {MIN_RESOLUTION: SHORT_RUN_BATCH if short else LONG_RUN_BATCH} if s.kind == "cpu" else GPU_BATCH
    least = s.config.model.stddev_group * s.ranks
    most = s.facts.images - s.facts.images % least or s.facts.images
    return {side: min(max(size, least), most) for side, size in batch.items() if side <= resolution}


def require_time(recipe: Recipe) -> None:
    """Raise UserError unless there is time for a step of every phase."""
    s, side, each = recipe.situation, recipe.sizes.resolution, recipe.situation.costs(recipe.sizes, recipe.batch)
    once = sum((1 if level == min(each) else 2) * each[level] * value_at(recipe.batch, level) for level in each)
    if once > s.seconds:
        raise UserError(
            f"hours= is too short: one step of every phase up to {side}x{side} takes {duration(once)} here, and "
            f"starting {duration(s.other_seconds)}.",
            f"Give at least hours={(2 * s.other_seconds + 10 * once) / 3600:.2g}, or lower schedule.final_resolution.",
        )


def choose_lengths(recipe: Recipe) -> int:
    """Choose the images of every phase, which fill the time; returns the sum of all."""
    s, side, config = recipe.situation, recipe.sizes.resolution, recipe.situation.config.schedule
    each, (stable, fade) = s.costs(recipe.sizes, recipe.batch), lengths_of(s)
    growth, worth = growth_seconds(each, stable, fade), least_seconds(s, recipe.sizes) <= s.seconds
    final, falling = value_at(stable, side), 0.0 if side >= PUBLISHED_FROM else FALLING_SHARE
    most = float(MAX_IMAGES)
    if s.scales:
        factor, most = s.seconds / (growth + final * each[side]), float("inf")
        falling = config.lr_decay_images / max(final, 1)
    else:
        fitting = GROWTH_SHARE * s.seconds / growth if growth else 1.0
        factor = (fitting if fitting >= LONGER_FROM else 1.0) if worth else min(fitting, 1.0)

    def chosen(key: str, table: PerResolution, levels: list[int]) -> dict[int, int]:
        if key in s.given:
            return {level: int(value_at(table, level)) for level in levels}
        images = {level: two_digits(min(factor * value_at(table, level), most)) for level in levels}
        return {level: max(count, int(value_at(recipe.batch, level))) for level, count in images.items()}

    levels = sorted(each)
    stable, fade = chosen(STABLE_KEY, stable, levels[:-1]), chosen(FADE_KEY, fade, levels[1:])
    growing = growth_seconds(each, stable, fade)
    stable[side] = max(two_digits((s.seconds - growing) / each[side]), int(value_at(recipe.batch, side)))
    reason = f"growth has {growing / s.seconds:.0%} of the time, {side}x{side} the rest"
    reason += f", the recipe's times {factor:.3g}" if s.scales else "" if worth else ": fewer images than are worth it"
    recipe.take({STABLE_KEY: stable, FADE_KEY: fade or 0}, reason)
    if s.scales or STABLE_KEY in s.given or config.total_images is not None:
        recipe.choices.append(Choice("schedule.total_images", None, "the end comes when the hours are over"))
    if falling or s.scales:
        reason = f"the last {falling:.0%} of {side}x{side}, as in {'the recipe' if s.scales else 'the demo'}"
        recipe.take({"schedule.lr_decay_images": two_digits(falling * stable[side])}, reason)
    return sum(stable.values()) + sum(fade.values())


def two_digits(number: float) -> int:
    """`number` with two digits that are not 0."""
    return int(float(f"{number:.2g}"))


def one_two_five(number: float) -> int:
    """The largest of 100, 200, 500, 1000 … that is not above `number`; at least 100."""
    power: int = 10 ** (len(str(int(max(number, 100)))) - 1)
    return power * max(digit for digit in (1, 2, 5) if digit * power <= max(number, 100))
