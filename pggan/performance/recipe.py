"""The recipe that `hours=` chooses: sizes and lengths that fill the time, and a table of rules, each with its evidence.

For 64 feature maps on CPUs, the rules come from the lab book (docs/lab.md); from 512x512 on, from the official preset
for one GPU; between them, from StyleGAN2-ADA's automatic configuration (Karras et al. 2020).
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pggan.config.train import TrainConfig, gamma_by_rule
from pggan.core.architecture import MIN_RESOLUTION, resolutions_between
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


class NetworkSizes(NamedTuple):
    """The sizes of networks, and whether D looks at features: with the batch, they decide what an image costs."""

    resolution: int
    fmap_base: int
    fmap_max: int
    features: bool = False  # pretrained ones, from FEATURES_FROM on


NO_SIZES = NetworkSizes(0, 0, 0)  # before they are chosen
# Seconds of an image at every level of networks, with so many images per batch.
Costs = Callable[[NetworkSizes, PerResolution], Mapping[int, float]]


@dataclass
class Recipe:
    """The keys that are chosen for images, a machine and a time; `choose` chooses them.

    Args: config: as composed without choices; given: the keys that stay; scales: whether `config` is a recipe whose
    lengths are scaled to the time; kind: of the devices, cpu, cuda or mps; seconds: that training may take;
    has_features: whether the weights of FEATURES are installed.
    """

    config: TrainConfig
    given: Set[str]
    facts: DataFacts
    kind: str
    ranks: int
    costs: Costs
    seconds: float
    has_features: bool = True
    scales: bool = False
    sizes: NetworkSizes = NO_SIZES
    batch: PerResolution = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)

    def take(self, values: Mapping[str, Any], reason: str) -> None:
        """Choose values by key, but for keys that are given."""
        self.choices += [Choice(*each, reason) for each in values.items() if each[0] not in self.given]

    def choose(self) -> None:
        """Choose all keys that are not given: sizes, batch, lengths, and the rules of the table."""
        self.choose_sizes()
        before, self.batch = [*self.choices], self.batch_sizes(self.sizes.resolution)
        is_short = self.choose_lengths() < SHORT_RUN
        self.choices, self.batch = before, self.batch_sizes(self.sizes.resolution, short=is_short)
        reason = f"better in runs of {'fewer' if is_short else 'more'} than {SHORT_RUN:,} images"
        reason = reason if self.kind == "cpu" else "the official preset's for one GPU"
        self.take({"schedule.batch": self.batch}, f"{reason}, where images and ranks allow")
        for holds, values, reason in self.rules(self.choose_lengths()):
            if holds:
                self.take(values, reason)

    def rules(self, images: int) -> list[tuple[bool, dict[str, Any], str]]:
        """The table: whether a rule holds, its keys, and its reason or evidence (KID); `images`: of the run."""
        facts, given, side, channels = self.facts, self.given, self.sizes.resolution, self.facts.channels
        drawn, photos = facts.drawn, not facts.drawn
        published, small, is_short = side >= PUBLISHED_FROM, side <= FEATURES_FROM, images < SHORT_RUN
        maps, batch = self.width(self.sizes, MIN_RESOLUTION), int(value_at(self.batch, side))
        loss = self.config.loss.name if "loss" in given else "wgan_gp" if published else "logistic"
        # Photographs up to 64x64: 573, 290, 259, 222 with gamma 0.1, 1, 4, 12; avatars 578 and 463 with 0.2, 1.
        least = 12.0 if photos and small and loss == "logistic" else 1.0
        gamma = gamma_by_rule(side, batch, least)
        gamma_by = f"0.0002 x {side}^2 / {batch}, at least {least:g}: less was worse"
        width = max((width for width in WIDTHS if width <= maps), default=WIDTHS[0])
        by_demo, rate = drawn and width == WIDTHS[0], RATES[width]
        rate_g, rate_d = (0.001, 0.001) if published else (0.02, 0.01) if by_demo else (rate, rate)
        rates_by = "official preset" if published else "demo" if by_demo else f"ORL, StyleGAN2-ADA: {maps} maps"
        rates = {"schedule.learning_rate_g": rate_g, "schedule.learning_rate_d": rate_d}
        few = photos and facts.images < FEW_IMAGES and loss != "wgan_gp"
        augmentation = self.config.augmentation
        adapts = few if "augmentation" not in given else augmentation.name == "ada"
        rampup, half_life = two_digits(min(images / 2, 500_000)), two_digits(min(max(images / 60, 1000), 10_000))
        ticks = round(min(max(self.seconds / 120, 60), 600))  # one every two minutes in long runs
        return [
            (published, {"loss": "wgan_gp"}, f"at {side}x{side}, what was published"),
            (not published, {"loss": "logistic"}, "the demo's, with lazy R1: two thirds of the time"),
            (loss != "wgan_gp", {"loss.gamma": gamma}, gamma_by),
            (loss == "logistic", {"loss.reg_interval": 8}, "as in the demo and the ORL run"),
            ("schedule.learning_rate_g" not in given, rates, rates_by),  # else the rate of D follows it
            (drawn and not published, {"model.bilateral": 4}, "flat areas: KID 232 with, 530 without"),
            (drawn and not published and maps < 128, {"model.residual": True}, "KID 591 with, 660 without"),
            (photos and small and channels in (1, 3), {"model.blur": True}, "KID 710 with, 810 without"),
            (drawn, {"data.mirror": False}, "as in the demo"),
            (few, {"augmentation": "ada"}, f"fewer than {FEW_IMAGES:,} photographs: D would learn them by heart"),
            (adapts, {"augmentation.rampup_images": rampup}, "p can rise to its limit within the run"),
            (True, {"ema.half_life_images": half_life}, "a sixtieth of the run, 1,000 to 10,000"),
            (True, {"ema.rampup": 0.2 if is_short else 0.05}, "the demo's" if is_short else "StyleGAN2-ADA's"),
            (True, {"monitor.tick_images": one_two_five(images / ticks)}, f"about {ticks} in the run"),
            (True, {"monitor.grid_images": one_two_five(images / (ticks // 5))}, f"about {ticks // 5} in the run"),
            (True, {"checkpoint.every_images": one_two_five(images / 3)}, "about 3 in the run"),
        ]

    def choose_sizes(self) -> None:
        """Choose the final resolution, the widths and pretrained features: the most for which there is time."""
        facts, schedule = self.facts, self.config.schedule
        first, highest = schedule.first_resolution, min(facts.resolution, 1024)
        sides = [*reversed(resolutions_between(first, max(first, highest)))]
        sides = [schedule.final_resolution] if "schedule.final_resolution" in self.given else sides
        needs = {side: self.least_seconds(self.candidates(side)[0]) for side in sides}
        side = next((side for side in sides if needs[side] <= self.seconds), sides[-1])
        above = f"{2 * side}x{2 * side} would take at least {duration(needs[2 * side])}" if 2 * side in needs else ""
        self.take({"schedule.final_resolution": side}, above or facts.note)
        narrow, *wider = self.candidates(side)
        fitting = [each for each in wider if self.least_seconds(each, WIDER) <= self.seconds]
        self.sizes = sizes = [narrow, *fitting][-1]
        maps = f"{self.width(sizes, MIN_RESOLUTION)} feature maps at 4x4, {self.width(sizes, side)} at {side}x{side}"
        if len(fitting) < len(wider):
            maps += f"; of wider networks, fewer than {WIDER * self.final_images(side):,} images fit into the time"
        self.take({"model.fmap_base": sizes.fmap_base, "model.fmap_max": sizes.fmap_max}, maps)
        is_logistic = "loss" not in self.given or self.config.loss.name == "logistic"
        if side != FEATURES_FROM or facts.drawn or facts.channels not in (1, 3) or not is_logistic:
            return
        if not self.has_features:
            reason = f'{FEATURES} would give clearer faces, and is not installed: pip install "pggan[metrics]"'
            self.take({"model.features": None}, reason)
        elif "model.features" not in self.given and self.least_seconds(sizes._replace(features=True)) <= self.seconds:
            self.sizes, features = sizes._replace(features=True), {"model.features": FEATURES}
            self.take(features | {"model.features_from": FEATURES_FROM}, "D looks at these, too: clearer faces")

    def candidates(self, side: int) -> list[NetworkSizes]:
        """Sizes of networks for a final resolution, the narrowest first; of the two numbers, given ones stay."""
        model, given = self.config.model, self.given
        widths = [width for width in WIDTHS if width >= value_at(MIN_WIDTH, side)]
        widths = [model.fmap_max] if "model.fmap_max" in given else widths
        bases = {width: min(BASE * side * width // WIDTHS[0], MAX_BASE) for width in widths}
        is_given = "model.fmap_base" in given
        return [NetworkSizes(side, model.fmap_base if is_given else bases[width], width) for width in widths]

    def width(self, sizes: NetworkSizes, resolution: int) -> int:
        """The feature maps at `resolution` of networks of these sizes."""
        model = replace(self.config.model, fmap_base=sizes.fmap_base, fmap_max=sizes.fmap_max)
        return model.architecture(sizes.resolution, self.facts.channels, self.facts.num_classes).width(resolution)

    def least_seconds(self, sizes: NetworkSizes, times: int = 1) -> float:
        """The time in which networks grow, and see `times` as many images as the final resolution is worth."""
        side, each = sizes.resolution, self.costs(sizes, self.batch_sizes(sizes.resolution))
        return growth_seconds(each, *self.lengths()) + times * self.final_images(side) * each[side]

    def final_images(self, side: int) -> int:
        """The images at a final resolution that are worth choosing it."""
        return (DRAWN_FINAL if self.facts.drawn else FINAL)[side]

    def lengths(self) -> tuple[PerResolution, PerResolution]:
        """The images of the stable phases and of the fades: those that are given, or those to be multiplied."""
        schedule = self.config.schedule.build()
        stable = schedule.stable_images if self.scales or STABLE_KEY in self.given else STABLE
        return stable, schedule.fade_images if self.scales or FADE_KEY in self.given else FADE

    def batch_sizes(self, resolution: int, *, short: bool = True) -> dict[int, int]:
        """The given or the best images per batch, by the levels up to `resolution` from which they hold.

        At least a group of minibatch stddev for every rank, at most as many whole groups as the images fill.
        """
        if "schedule.batch" in self.given:
            return {side: int(batch) for side, batch in self.config.schedule.build().batch.items()}
        batch = {MIN_RESOLUTION: SHORT_RUN_BATCH if short else LONG_RUN_BATCH} if self.kind == "cpu" else GPU_BATCH
        least, images = self.config.model.stddev_group * self.ranks, self.facts.images
        most = images - images % least or images
        return {side: min(max(size, least), most) for side, size in batch.items() if side <= resolution}

    def choose_lengths(self) -> int:
        """Choose the images of every phase, which fill the time; returns the sum of all."""
        side, config, each = self.sizes.resolution, self.config.schedule, self.costs(self.sizes, self.batch)
        levels, (stable, fade) = sorted(each), self.lengths()
        growth, worth = growth_seconds(each, stable, fade), self.least_seconds(self.sizes) <= self.seconds
        final, most = value_at(stable, side), float("inf") if self.scales else MAX_IMAGES
        fitting = GROWTH_SHARE * self.seconds / growth if growth else 1.0
        factor = (fitting if fitting >= LONGER_FROM else 1.0) if worth else min(fitting, 1.0)
        factor = self.seconds / (growth + final * each[side]) if self.scales else factor

        def chosen(key: str, table: PerResolution, levels: list[int]) -> dict[int, int]:
            if key in self.given:
                return {level: int(value_at(table, level)) for level in levels}
            images = {level: two_digits(min(factor * value_at(table, level), most)) for level in levels}
            return {level: max(count, int(value_at(self.batch, level))) for level, count in images.items()}

        stable, fade = chosen(STABLE_KEY, stable, levels[:-1]), chosen(FADE_KEY, fade, levels[1:])
        growing = growth_seconds(each, stable, fade)
        stable[side] = max(two_digits((self.seconds - growing) / each[side]), int(value_at(self.batch, side)))
        reason = f"growth has {growing / self.seconds:.0%} of the time, {side}x{side} the rest"
        reason += f", the recipe's times {factor:.3g}" if self.scales else "" if worth else ": fewer than are worth it"
        self.take({STABLE_KEY: stable, FADE_KEY: fade or 0}, reason)
        if self.scales or STABLE_KEY in self.given or config.total_images is not None:
            self.choices.append(Choice("schedule.total_images", None, "the end comes when the hours are over"))
        falling = config.lr_decay_images / max(final, 1) if self.scales else FALLING_SHARE
        if side < PUBLISHED_FROM or self.scales:
            reason = f"the last {falling:.0%} of {side}x{side}, as in {'the recipe' if self.scales else 'the demo'}"
            self.take({"schedule.lr_decay_images": two_digits(falling * stable[side])}, reason)
        return sum(stable.values()) + sum(fade.values())


def growth_seconds(each: Mapping[int, float], stable: PerResolution, fade: PerResolution) -> float:
    """The time of growing to the highest level of `each`, which are the seconds of an image by level."""
    levels = sorted(each)
    parts = ((stable, levels[:-1]), (fade, levels[1:]))
    return sum(value_at(images, side) * each[side] for images, sides in parts for side in sides)


def two_digits(number: float) -> int:
    """`number` with two digits that are not 0."""
    return int(float(f"{number:.2g}"))


def one_two_five(number: float) -> int:
    """The largest of 100, 200, 500, 1000 … that is not above `number`; at least 100."""
    power: int = 10 ** (len(str(int(max(number, 100)))) - 1)
    return power * max(digit for digit in (1, 2, 5) if digit * power <= max(number, 100))
