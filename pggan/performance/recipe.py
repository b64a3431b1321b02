"""Chooses the recipe for `hours=N`: network sizes and phase lengths for N hours of training, and other keys by rules.

The rules for CPUs and networks of 64 feature maps come from experiments (docs/lab.md).  The rules for 512x512 and above
come from the preset for one GPU in the paper's official code.  All other rules are those of StyleGAN2-ADA's cfg=auto.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pggan.config.train import TrainConfig, gamma_by_rule
from pggan.core.architecture import MIN_RESOLUTION, resolutions_between
from pggan.core.schedule import PerResolution, value_at
from pggan.core.text import duration

# {resolution: images} of each stable phase and of each fade; up to 64x64, as in the recipes avatars_32 and orl_64.
STABLE = {4: 1500, 8: 2500, 16: 5000, 32: 8000, 64: 16_000, 128: 32_000, 256: 64_000, 512: 128_000}
FADE = {8: 1500, 16: 3000, 32: 5000, 64: 8000, 128: 16_000, 256: 32_000, 512: 64_000, 1024: 128_000}
MAX_IMAGES = 600_000  # largest number of images in any phase before the last, as in the official presets
# In long runs, all phases before the last are lengthened by one factor, so that they take 30 % of the time.
# Phases are not lengthened by a factor below 1.5, because slightly longer phases make short runs worse.
# After five minutes, KID (x 1000) of avatars (cartoon faces) is 263 with recipe `demo`, and 294 with longer phases.
GROWTH_SHARE, LONGER_FROM = 0.3, 1.5
# The final resolution can be R if there is time to grow to R and then show FINAL[R] images.  Above 64x64: guesses.
# With final resolution 32x32, KID of avatars is 522 after 18,000 images; with 16x16, 586 after twice the time.
# With final resolution 64x64, KID of avatars is 524 after 43,000 images; with 32x32, 550 after a similar time.
FINAL = {4: 500, 8: 2000, 16: 5000, 32: 10_000, 64: 20_000, 128: 10**5, 256: 3 * 10**5, 512: 10**6, 1024: 3 * 10**6}
# Networks get more than 64 feature maps if there is time for max(10 * FINAL[R], 200,000) images at R.
# After half an hour of training, KID (x 1000) of avatars is 217 with 64 feature maps, and 347 with 128 feature maps.
WIDTHS, WIDER, WIDER_FROM = (64, 128, 256, 512), 10, 200_000
MIN_WIDTH = {4: 64, 128: 128, 256: 256, 512: 512}  # least model.fmap_max by final resolution
BASE, MAX_BASE = 8, 8192  # model.fmap_base is BASE * final resolution * model.fmap_max / 64, at most MAX_BASE
# On a CPU, runs of fewer than SHORT_RUN images use small batches, because more updates help short runs.
# With batches of 4 instead of 8, KID (with Inception, x 1000) of portraits falls from 2.9 to 1.5 at 32x32.
# At 64x64 with batches of 8, KID falls from 2.4 to 1.5 if lower resolutions have batches of 4 instead of 8.
# At 64x64, batches of 4 give 34 of 48 faces without defect, batches of 8 give 24 (with pretrained features: 46, 37).
# Longer runs on a CPU use batches of 16: after 476,000 avatars, KID (x 1000) is 217 with batches of 16, 268 with 8.
SHORT_RUN, LONG_RUN_BATCH, DRAWN_BATCH, PHOTOS_BATCH = 200_000, {4: 16}, {4: 8}, {4: 4, 128: 8}
GPU_BATCH = {4: 128, 32: 64, 64: 32, 128: 16, 256: 8, 512: 4}
# At 64x64, pretrained features in D lower KID (with Inception, x 1000) of ORL faces from 9.7 to 1.4.
# Below 64x64, training without pretrained features is better.
FEATURES, FEATURES_FROM = "efficientnet-lite0", 64
FALLING_SHARE = 0.14  # learning rates fall to 0 in the last 14 % of images at the final resolution (as in recipe demo)
PUBLISHED_FROM = 512  # From this final resolution on, loss and learning rates are as in the paper's code.
# {model.fmap_max: learning rate}: 0.006 is from recipe orl_64, 0.0025 from StyleGAN2-ADA; the others lie between them.
RATES = {64: 0.006, 128: 0.005, 256: 0.0035, 512: 0.0025}
# Long runs with under 5,000 photographs use adaptive discriminator augmentation (ADA).  A short run was worse with ADA.
FEW_IMAGES = 5000
STABLE_KEY, FADE_KEY = "schedule.stable_images", "schedule.fade_images"


class Choice(NamedTuple):
    """A configuration key that pggan has chosen, the key's value, and the reason that pggan prints."""

    key: str
    value: Any
    reason: str


class DataFacts(NamedTuple):
    """Facts about the training images, by which the recipe is chosen."""

    images: int  # number of images with at least `resolution` pixels a side; for a folder, an estimate
    resolution: int  # highest final resolution that needs no upsampling of the images
    channels: int
    num_classes: int  # 0 without labels
    drawn: bool  # true for avatars, false for photographs
    note: str  # a text for the user with the number and the resolution of the images


class NetworkSizes(NamedTuple):
    """The sizes of G and D that the recipe chooses."""

    resolution: int
    fmap_base: int
    fmap_max: int
    features: bool = False  # whether D uses pretrained features at resolution FEATURES_FROM and above


NO_SIZES = NetworkSizes(0, 0, 0)  # the value of `Recipe.sizes` until `choose_sizes` replaces it
# A function of type Costs returns the training seconds per image by resolution, given network sizes and batch sizes.
Costs = Callable[[NetworkSizes, PerResolution], Mapping[int, float]]


@dataclass
class Recipe:
    """Chooses configuration values that suit the images, the machine and the time; `choose` fills `choices`.

    Args: config: the configuration before any choice; given: keys that the user has set; scales: whether to scale the
    phase lengths of `config` instead of the default lengths; kind: device type (cpu, cuda or mps); seconds: time for
    training; has_features: whether the package with D's pretrained features is installed.
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

    @property
    def grows(self) -> bool:
        """Whether this run starts with weights trained up to schedule.first_resolution (grow= or init_from=)."""
        return self.config.init_from is not None and not self.scales

    @property
    def transfers(self) -> bool:
        """Whether this run begins with weights that were trained on other images (init_from= without grow=)."""
        return self.grows and self.config.grow is None

    def take(self, values: Mapping[str, Any], reason: str) -> None:
        """Add `values` {key: value} to `choices`, all with the same `reason`; leave out keys that the user has set."""
        self.choices += [Choice(*each, reason) for each in values.items() if each[0] not in self.given]

    def choose(self) -> None:
        """Choose network sizes, batch sizes, phase lengths and the keys in `self.rules`; keep the user's values."""
        self.choose_sizes()
        before, self.batch = [*self.choices], self.batch_sizes(self.sizes.resolution)
        is_short = self.choose_lengths() < SHORT_RUN
        self.choices, self.batch = before, self.batch_sizes(self.sizes.resolution, short=is_short)
        reason = f"better in runs of {'fewer' if is_short else 'more'} than {SHORT_RUN:,} images"
        reason = reason if self.kind == "cpu" else "as in the official preset for one GPU"
        self.take({"schedule.batch": self.batch}, f"{reason}; larger for many ranks, smaller for few images")
        for holds, values, reason in self.rules(self.choose_lengths()):
            if holds:
                self.take(values, reason)

    def rules(self, images: int) -> list[tuple[bool, dict[str, Any], str]]:
        """List the rules for a run of `images` images: (whether the rule applies, {key: value}, printed reason)."""
        facts, given, side, channels = self.facts, self.given, self.sizes.resolution, self.facts.channels
        drawn, photos = facts.drawn, not facts.drawn
        published, small, is_short = side >= PUBLISHED_FROM, side <= FEATURES_FROM, images < SHORT_RUN
        maps, batch = self.width(self.sizes, MIN_RESOLUTION), int(value_at(self.batch, side))
        loss = self.config.loss.name if "loss" in given else "wgan_gp" if published else "logistic"
        # At 64x64 with pretrained features, 39 of 64 faces have no defect with loss.gamma=12, and 24 with loss.gamma=4.
        # Without pretrained features, KID (x 1000) of portraits is 83 with loss.gamma=4, and 97 with loss.gamma=12.
        # At 32x32, KID (with Inception, x 1000) of portraits is 2.6 with loss.gamma=1, and 6.2 with loss.gamma=3.
        at_64 = 12.0 if self.sizes.features else 4.0  # also 4 for model.features set by the user or init_from=
        least = at_64 if photos and side == FEATURES_FROM and loss == "logistic" else 1.0
        gamma = gamma_by_rule(side, batch, least)
        gamma_by = f"0.0002 x {side}^2 / {batch}, at least {least:g}, because smaller values were worse"
        width = max((width for width in WIDTHS if width <= maps), default=WIDTHS[0])
        by_demo, rate = drawn and width == WIDTHS[0], RATES[width]
        rate_g, rate_d = (0.001, 0.001) if published else (0.02, 0.01) if by_demo else (rate, rate)
        rates_by = "official preset" if published else "recipe demo" if by_demo else f"for {maps} feature maps"
        rates = {"schedule.learning_rate_g": rate_g, "schedule.learning_rate_d": rate_d}
        few = photos and not is_short and facts.images < FEW_IMAGES and loss != "wgan_gp"
        augmentation = self.config.augmentation
        adapts = few if "augmentation" not in given else augmentation.name == "ada"
        # The EMA's half-life is images / part.  Of 48 fakes, 40 faces have no defect with part=15, and 28 with part=60.
        part = 60 if drawn else 15  # With part=15, avatars have a worse sliced Wasserstein distance (SWD).
        rampup, half_life = two_digits(min(images / 2, 500_000)), two_digits(min(max(images / part, 1000), 10_000))
        ticks = round(min(max(self.seconds / 120, 60), 600))  # log lines: one every two minutes, but 60 to 600 in all
        return [
            (published, {"loss": "wgan_gp"}, f"the published loss for {side}x{side}"),
            (not published, {"loss": "logistic"}, "as in the recipe demo; needs two thirds of the time of wgan_gp"),
            (loss in ("logistic", "relativistic"), {"loss.gamma": gamma}, gamma_by),
            (loss == "logistic", {"loss.reg_interval": 8}, "as in the recipes demo and orl_64"),
            ("schedule.learning_rate_g" not in given, rates, rates_by),  # By default, D has the user's rate of G.
            (drawn and not published, {"model.bilateral": 4}, "lowers KID of avatars from 530 to 232"),
            (drawn and not published and maps < 128, {"model.residual": True}, "lowers KID of avatars from 660 to 591"),
            (photos and small and channels in (1, 3), {"model.blur": True}, "lowers KID of portraits from 810 to 710"),
            (drawn, {"data.mirror": False}, "as in recipe demo"),
            (few, {"augmentation": "ada"}, f"D would memorize so few photographs (under {FEW_IMAGES:,}) in a long run"),
            (adapts, {"augmentation.rampup_images": rampup}, "so that ADA's probability p can reach 1 within the run"),
            (True, {"ema.half_life_images": half_life}, f"1/{part} of all images, at least 1,000 and at most 10,000"),
            (self.grows, {"ema.rampup": None}, "the averaged generator is already trained"),
            (not self.grows, {"ema.rampup": 0.2 if is_short else 0.05}, "recipe demo" if is_short else "StyleGAN2-ADA"),
            (True, {"monitor.tick_images": one_two_five(images / ticks)}, f"about {ticks} log lines in the run"),
            (True, {"monitor.grid_images": one_two_five(images / (ticks // 5))}, f"about {ticks // 5} grids in all"),
            (True, {"checkpoint.every_images": one_two_five(images / 3)}, "about 3 checkpoints in the run"),
        ]

    def choose_sizes(self) -> None:
        """Choose the highest resolution that fits the time, then the widest networks, then D's pretrained features."""
        facts, schedule = self.facts, self.config.schedule
        first, highest = schedule.first_resolution, min(facts.resolution, 1024)
        if self.grows:
            highest = min(highest, max(2 * first, schedule.final_resolution))
        lowest = MIN_RESOLUTION if self.transfers else first
        sides = [*reversed(resolutions_between(lowest, max(lowest, highest)))]
        sides = [schedule.final_resolution] if "schedule.final_resolution" in self.given else sides
        needs = {side: self.least_seconds(self.candidates(side)[0]) for side in sides}
        side = next((side for side in sides if needs[side] <= self.seconds), sides[-1])
        double, reason = f"{2 * side}x{2 * side}", facts.note
        if 2 * side in needs:
            reason = f"{double} would take at least {duration(needs[2 * side])}"
            if side < FEATURES_FROM and not facts.drawn and not self.grows:
                reason += ". For faces, add init_from=pretrained:portraits64, and data.crop=faces to cut them out"
        elif self.config.grow is not None and side == facts.resolution < 1024:
            reason += f"; larger images would allow {double}"
        self.take({"schedule.final_resolution": side}, reason)
        if self.transfers:
            self.take({"schedule.first_resolution": min(first, side)}, f"init_from= has weights up to {first}x{first}")
        narrow, *wider = self.candidates(side)
        many = max(WIDER * self.final_images(side), WIDER_FROM)
        fitting = [each for each in wider if self.least_seconds(each, many) <= self.seconds]
        self.sizes = sizes = [narrow, *fitting][-1]
        maps = f"{self.width(sizes, MIN_RESOLUTION)} feature maps at 4x4, {self.width(sizes, side)} at {side}x{side}"
        maps += "; wider networks are better in longer runs only" * (len(fitting) < len(wider))
        self.take({"model.fmap_base": sizes.fmap_base, "model.fmap_max": sizes.fmap_max}, maps)
        is_logistic = "loss" not in self.given or self.config.loss.name == "logistic"
        is_plain = is_logistic and self.config.model.discriminator is None
        if side != FEATURES_FROM or facts.drawn or facts.channels not in (1, 3) or not is_plain:
            return
        if not self.has_features:
            reason = f'pip install "pggan[metrics]" would give clearer faces, by pretrained features ({FEATURES})'
            self.take({"model.features": None}, reason)
        elif "model.features" not in self.given and self.least_seconds(sizes._replace(features=True)) <= self.seconds:
            self.sizes, features = sizes._replace(features=True), {"model.features": FEATURES}
            self.take(features | {"model.features_from": FEATURES_FROM}, "D sees pretrained features: clearer faces")

    def candidates(self, side: int) -> list[NetworkSizes]:
        """List possible network sizes for final resolution `side`, narrowest first; sizes set by the user are kept."""
        model, given = self.config.model, self.given
        widths = [width for width in WIDTHS if width >= value_at(MIN_WIDTH, side)]
        widths = [model.fmap_max] if "model.fmap_max" in given else widths
        bases = {width: min(BASE * side * width // WIDTHS[0], MAX_BASE) for width in widths}
        is_given = "model.fmap_base" in given
        return [NetworkSizes(side, model.fmap_base if is_given else bases[width], width) for width in widths]

    def width(self, sizes: NetworkSizes, resolution: int) -> int:
        """The number of feature maps at `resolution` in networks with these `sizes`."""
        model = replace(self.config.model, fmap_base=sizes.fmap_base, fmap_max=sizes.fmap_max)
        return model.architecture(sizes.resolution, self.facts.channels, self.facts.num_classes).width(resolution)

    def least_seconds(self, sizes: NetworkSizes, images: int = 0) -> float:
        """The seconds to grow to the final resolution, and to train there for `images` images (0: `self.final_images`).

        Growth is shortened to at most half of the time, unless the user set phase lengths; the estimate does the same.
        """
        side, each = sizes.resolution, self.costs(sizes, self.batch_sizes(sizes.resolution))
        growth, final = growth_seconds(each, *self.lengths()), (images or self.final_images(side)) * each[side]
        return final + (growth if self.scales or STABLE_KEY in self.given else min(growth, final))

    def final_images(self, side: int) -> int:
        """The least number of images that a run with the final resolution `side` has to show at `side`."""
        if self.grows:
            fade = int(value_at(FADE, max(side, 8)))
            trained = fade // 2 if self.transfers else 0  # With grow=, weights are already trained at `side`.
            return trained if side <= self.config.schedule.first_resolution else fade
        return int(value_at(FINAL, side))

    def lengths(self) -> tuple[PerResolution, PerResolution]:
        """{resolution: images} for stable phases, and for fades; the method `choose_lengths` fits both to the time."""
        schedule = self.config.schedule.build()
        default = STABLE | ({schedule.first_resolution: 0} if self.grows else {})  # this resolution is trained already
        stable = schedule.stable_images if self.scales or STABLE_KEY in self.given else default
        return stable, schedule.fade_images if self.scales or FADE_KEY in self.given else FADE

    def batch_sizes(self, resolution: int, *, short: bool = True) -> dict[int, int]:
        """Return {resolution: batch size} up to `resolution`: the user's values, or defaults for the device and run.

        A batch has at least one minibatch-stddev group per rank, and at most as many images as the training set.
        """
        if "schedule.batch" in self.given:
            return {side: int(batch) for side, batch in self.config.schedule.build().batch.items()}
        small = DRAWN_BATCH if self.facts.drawn else PHOTOS_BATCH
        batch = (small if short else LONG_RUN_BATCH) if self.kind == "cpu" else GPU_BATCH
        least, images = self.config.model.stddev_group * self.ranks, self.facts.images
        most = images - images % least or images
        return {side: min(max(size, least), most) for side, size in batch.items() if side <= resolution}

    def choose_lengths(self) -> int:
        """Choose the number of images per phase so that training takes `seconds`; returns the sum of all phases."""
        side, config, each = self.sizes.resolution, self.config.schedule, self.costs(self.sizes, self.batch)
        levels, (stable, fade) = sorted(each), self.lengths()
        growth, worth = growth_seconds(each, stable, fade), self.least_seconds(self.sizes) <= self.seconds
        final, most = value_at(stable, side), float("inf") if self.scales else MAX_IMAGES
        share = self.seconds / growth if growth else 1.0
        factor = GROWTH_SHARE * share if GROWTH_SHARE * share >= LONGER_FROM else min(share / 2, 1.0)
        factor = self.seconds / (growth + final * each[side]) if self.scales else factor

        def chosen(key: str, table: PerResolution, levels: list[int]) -> dict[int, int]:
            if key in self.given:
                return {level: int(value_at(table, level)) for level in levels}
            images = {level: two_digits(min(factor * value_at(table, level), most)) for level in levels}
            return {level: max(count, int(value_at(self.batch, level))) for level, count in images.items()}

        stable, fade = chosen(STABLE_KEY, stable, levels[:-1]), chosen(FADE_KEY, fade, levels[1:])
        growing = growth_seconds(each, stable, fade)
        stable[side] = max(two_digits((self.seconds - growing) / each[side]), int(value_at(self.batch, side)))
        reason = f"phases before the last take {growing / self.seconds:.0%} of the time, {side}x{side} takes the rest"
        reason = reason if growing else f"training is at {side}x{side} only"
        reason += f", phases are {factor:.3g} x the recipe's" if self.scales else "" if worth else ": too few images"
        self.take({STABLE_KEY: stable, FADE_KEY: fade or 0}, reason)
        if self.scales or STABLE_KEY in self.given or config.total_images is not None:
            self.choices.append(Choice("schedule.total_images", None, "training ends when the hours are over"))
        falling = config.lr_decay_images / max(final, 1) if self.scales else FALLING_SHARE
        if side < PUBLISHED_FROM or self.scales:
            reason = f"the last {falling:.0%} of {side}x{side}, as in {'the recipe' if self.scales else 'recipe demo'}"
            self.take({"schedule.lr_decay_images": two_digits(falling * stable[side])}, reason)
        return sum(stable.values()) + sum(fade.values())


def growth_seconds(each: Mapping[int, float], stable: PerResolution, fade: PerResolution) -> float:
    """The seconds of all phases before the last; `each` has the training seconds per image by resolution."""
    levels = sorted(each)
    parts = ((stable, levels[:-1]), (fade, levels[1:]))
    return sum(value_at(images, side) * each[side] for images, sides in parts for side in sides)


def two_digits(number: float) -> int:
    """Round `number` to two significant digits."""
    return int(float(f"{number:.2g}"))


def one_two_five(number: float) -> int:
    """Round `number` down to 100, 200, 500, 1000, 2000 …; the least result is 100."""
    power: int = 10 ** (len(str(int(max(number, 100)))) - 1)
    return power * max(digit for digit in (1, 2, 5) if digit * power <= max(number, 100))
