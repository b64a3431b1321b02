"""The recipe that fits images, device and hours: rules, each with its reason.

They are taken from the lab book, for networks of up to 64 feature maps on CPUs (the demo, and the ORL photographs);
from the official preset for one GPU, from 512x512 on; and between them from StyleGAN2-ADA's automatic configuration
(Karras et al. 2020: gamma = 0.0002 resolution^2 / batch, learning rates of 0.0025 for 512 feature maps).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_UP, Context
from typing import Any, NamedTuple, Protocol

from pggan.config import TrainConfig
from pggan.core.architecture import MIN_RESOLUTION, resolutions_between
from pggan.core.errors import UserError
from pggan.core.formatting import duration
from pggan.core.schedule import PerResolution, value_at
from pggan.performance.plan.data_facts import DataFacts

MAX_RESOLUTION = 1024  # of the paper

# Images of the levels on the way.  Up to 32x32 those of avatars_32, up to 64x64 about the ORL run's; above, twice as
# many from level to level.
STABLE = {4: 1500, 8: 2500, 16: 5000, 32: 8000, 64: 16_000, 128: 32_000, 256: 64_000, 512: 128_000}
FADE = {8: 1500, 16: 3000, 32: 5000, 64: 8000, 128: 16_000, 256: 32_000, 512: 64_000, 1024: 128_000}
GROWTH_SHARE = 0.3  # of the time, as in the demo: longer runs multiply the images above,
MAX_IMAGES = 600_000  # up to those of the official presets
# Share of the images at the final resolution over which the rates fall to 0, as in the demo, up to PUBLISHED_FROM: at
# constant rates, eyes stay blurred and backgrounds mottled (lab book).
FALLING_SHARE = 0.14
# Images at the final resolution that are worth choosing it.  Half of those of avatars_32 and of the ORL run; above,
# estimates.
FINAL = {4: 500, 8: 2000, 16: 5000, 32: 15_000, 64: 20_000, 128: 100_000, 256: 300_000, 512: 10**6, 1024: 3 * 10**6}
# The flat areas of drawn images show every error: at 64x64, 30,000 avatars end at a KID of 1055 (lab book).
DRAWN_FINAL = FINAL | {32: 20_000, 64: 60_000}
# Feature maps of the widest levels, and how many times FINAL there has to be time for before they are worth it: in half
# an hour, 180,000 images with 128 maps end at a KID of 347, 476,000 with 64 at 217 (lab book).
WIDTHS = (64, 128, 256, 512)
WIDER = 10
MIN_WIDTH = {4: 64, 128: 128, 256: 256, 512: 512}  # by final resolution
BASE = 8  # times the final resolution is fmap_base for 64 feature maps: 16 maps at the end, as in the demo
MAX_FMAP_BASE = 8192  # the paper's

CPU_BATCH = 8  # makes twice the updates of 16 (263 portraits: KID 372 and 378 instead of 678 and 764; lab book)
DRAWN_CPU_BATCH = 16  # the demo's: 8 take a quarter more time, and long runs end worse (lab book)
GPU_BATCH = {4: 128, 32: 64, 64: 32, 128: 16, 256: 8, 512: 4}  # the official preset's for one GPU
RATES = {64: 0.006, 128: 0.005, 256: 0.0035, 512: 0.0025}  # the ORL run's, StyleGAN2-ADA's, and between them
DRAWN_RATES = 0.02, 0.01  # of G and D, the demo's
PUBLISHED_FROM = 512  # final resolution from which loss and rates are those of the official preset
PUBLISHED_RATE = 0.001
MIN_IMAGES = 2  # in a batch
MIN_GAMMA = 1.0  # the demo's,
MIN_GAMMA_OF_PHOTOGRAPHS = 12.0  # and the ORL run's, of photographs up to
PHOTOGRAPHS_MEASURED = 64  # this resolution
REG_INTERVAL = 8  # the demo's and the ORL run's
FEW_IMAGES = 5000  # fewer are augmented,
MAX_RAMPUP_IMAGES = 500_000  # adapted as fast as the run needs it, or as in StyleGAN2-ADA
GROUPS = ("loss", "augmentation")  # keys whose values are files of the configuration


class Choice(NamedTuple):
    """A key that was chosen, and why."""

    key: str
    value: Any
    reason: str


class Machine(NamedTuple):
    """The devices that a run trains on."""

    kind: str  # cpu, cuda or mps
    ranks: int


class NetworkSizes(NamedTuple):
    """The sizes of networks that decide, with the batch, what an image costs."""

    resolution: int
    fmap_base: int
    fmap_max: int


class GivenKeys(Protocol):
    """Which keys stay as they are."""

    def in_command(self, key: str) -> bool:
        """Whether the command line has `key`."""

    def has(self, key: str) -> bool:
        """Whether the command line, or a recipe that it names, has `key`."""


# Seconds of an image at every level of networks, with so many images per batch.
Costs = Callable[[NetworkSizes, PerResolution], Mapping[int, float]]


@dataclass
class RecipeChooser:
    """Chooses all keys that are not given.

    Args: config: as composed without choices; seconds: that training may take; other_seconds: of the hours, besides.
    """

    config: TrainConfig
    given: GivenKeys
    facts: DataFacts
    machine: Machine
    costs: Costs
    seconds: float
    other_seconds: float = 0.0
    found: list[Choice] = field(default_factory=list)

    def choose(self) -> tuple[NetworkSizes, PerResolution]:
        """Fill `found`, in the order in which keys are chosen; returns what is to be measured for them.

        Raises UserError where the images do not suffice for a batch, or the time for a step of every phase.
        """
        self.found = []
        self._require_images()
        networks = self._networks()
        batch = self._batch(networks.resolution)
        each = self.costs(networks, batch)
        self._require_time(networks.resolution, batch, each)
        images = self._lengths(networks, batch, each)
        loss = self._loss(networks.resolution, batch)
        self._rates(networks)
        self._blocks(networks)
        self._small_data(loss, images)
        self._reports(images)
        return networks, batch

    def _take(self, key: str, value: Any, reason: str) -> None:
        if not self.given.has(f"{key}.name" if key in GROUPS else key):
            self.found.append(Choice(key, value, reason))

    def _take_all(self, values: Mapping[str, Any], reason: str) -> None:
        """Take `values` by key, the first of them that is free with the `reason` of all."""
        before = len(self.found)
        for key, value in values.items():
            self._take(key, value, reason if len(self.found) == before else "as above")

    # ---- networks and batch ----

    def _networks(self) -> NetworkSizes:
        first, final = self.config.schedule.first_resolution, self.config.schedule.final_resolution
        largest = max(min(self.facts.resolution, MAX_RESOLUTION), first)
        fixed = self.given.has("schedule.final_resolution") or self._scales_lengths
        sides = [final] if fixed else [*reversed(resolutions_between(first, largest))]
        needs = {side: self._least_seconds(self._candidates(side)[0]) for side in sides}
        side = next((side for side in sides if needs[side] <= self.seconds), sides[-1])
        narrow, *wider = self._candidates(side)
        networks = [narrow, *(each for each in wider if self._least_seconds(each, WIDER) <= self.seconds)][-1]
        above = needs.get(2 * side)
        reason = self.facts.note if above is None else f"{2 * side}x{2 * side} would take at least {duration(above)}"
        self._take("schedule.final_resolution", side, reason)
        model = replace(self.config.model, fmap_base=networks.fmap_base, fmap_max=networks.fmap_max)
        width = model.architecture(side, self.facts.channels, self.facts.num_classes).width
        maps = f"{width(MIN_RESOLUTION)} feature maps at 4x4, {width(side)} at {side}x{side}"
        if networks.fmap_max < WIDTHS[-1] and not self._has_widths:
            worth = WIDER * self._final_images(side)
            maps += f"; of wider networks, fewer than {worth:,} images at {side}x{side} fit into the time"
        self._take_all({"model.fmap_base": networks.fmap_base, "model.fmap_max": networks.fmap_max}, maps)
        return networks

    @property
    def _has_widths(self) -> bool:
        return self.given.has("model.fmap_max") or self.given.has("model.fmap_base")

    def _candidates(self, side: int) -> list[NetworkSizes]:
        """Sizes of networks for a final resolution, the narrowest first."""
        model, least = self.config.model, value_at(MIN_WIDTH, side)
        if self._has_widths:
            return [NetworkSizes(side, model.fmap_base, model.fmap_max)]
        widths = [width for width in WIDTHS if width >= least]
        return [NetworkSizes(side, min(BASE * side * width // WIDTHS[0], MAX_FMAP_BASE), width) for width in widths]

    def _least_seconds(self, networks: NetworkSizes, times: int = 1) -> float:
        """The time in which `networks` grow, and see `times` as many images as the final resolution is worth."""
        side = networks.resolution
        each = self.costs(networks, self._batch_sizes(side))
        return growth_seconds(each, self._stable, self._fade) + times * self._final_images(side) * each[side]

    def _final_images(self, side: int) -> int:
        return (DRAWN_FINAL if self.facts.drawn else FINAL)[side]

    def _batch_sizes(self, resolution: int) -> dict[int, int]:
        if self.given.has("schedule.batch"):
            return {side: int(batch) for side, batch in self.config.schedule.build().batch.items()}
        batch = {MIN_RESOLUTION: self._cpu_batch} if self.machine.kind == "cpu" else GPU_BATCH
        least, most = self._least_batch, self._most_batch
        return {side: min(max(size, least), most) for side, size in batch.items() if side <= resolution}

    @property
    def _cpu_batch(self) -> int:
        return DRAWN_CPU_BATCH if self.facts.drawn else CPU_BATCH

    @property
    def _least_batch(self) -> int:
        """A group of minibatch stddev for every rank."""
        return self.config.model.stddev_group * self.machine.ranks

    @property
    def _most_batch(self) -> int:
        """The largest batch of whole groups that the images fill, or one smaller group of all of them."""
        images = self.facts.images
        return images - images % self._least_batch or images

    def _require_images(self) -> None:
        """Raise UserError unless the images fill a batch that can be chosen."""
        images, ranks = self.facts.images, self.machine.ranks
        least = self._least_batch if ranks > 1 else MIN_IMAGES
        if images < least and not self.given.has("schedule.batch"):
            name = self.config.data.path or f"data.count={images}"
            why = f", a group of minibatch stddev for each of {ranks} ranks" if ranks > 1 else ""
            raise UserError(
                f"{name} has {images} image{'s' * (images != 1)} to train on; {least} are needed{why}.",
                f"Give more images{', or use fewer devices=' * (ranks > 1)}.",
            )

    def _batch(self, resolution: int) -> dict[int, int]:
        batch = self._batch_sizes(resolution)
        reason = "the official preset's for one GPU"
        if self.machine.kind == "cpu":
            reason = "the demo's" if self.facts.drawn else "makes more of the same images than the demo's 16"
        if self.machine.ranks > 1:
            reason += ", at least a group of minibatch stddev for every rank"
        if self._most_batch in batch.values():
            reason += f"; the images fill {self._most_batch}"
        self._take("schedule.batch", batch, reason)
        return batch

    # ---- lengths ----

    def _require_time(self, side: int, batch: PerResolution, each: Mapping[int, float]) -> None:
        """Raise UserError unless there is time for a step of every phase."""
        phases = {level: 1 if level == min(each) else 2 for level in each}
        once = sum(phases[level] * each[level] * value_at(batch, level) for level in each)
        if once > self.seconds:
            least = plain((2 * self.other_seconds + 10 * once) / 3600)  # starting may take longer the next time
            lower = ", or a lower schedule.final_resolution" if side > min(each) else ""
            raise UserError(
                f"hours= is too short for one step of every phase up to {side}x{side}, which take {duration(once)} "
                "here.",
                f"Give at least hours={least}{lower}.",
            )

    @property
    def _scales_lengths(self) -> bool:
        """Whether a recipe, and not the command line, has the lengths of the phases."""
        return self.given.has("schedule.stable_images") and not self.given.in_command("schedule.stable_images")

    @property
    def _stable(self) -> PerResolution:
        """The images of the levels on the way: those that are given, or those to be multiplied."""
        return self.config.schedule.build().stable_images if self.given.has("schedule.stable_images") else STABLE

    @property
    def _fade(self) -> PerResolution:
        return self.config.schedule.build().fade_images if self.given.has("schedule.fade_images") else FADE

    def _lengths(self, networks: NetworkSizes, batch: PerResolution, each: Mapping[int, float]) -> int:
        """Choose the images of every phase that has no given ones; returns the sum of all."""
        if self._scales_lengths:
            return self._scaled_lengths(each)
        side, worth = networks.resolution, self._least_seconds(networks) <= self.seconds
        given = {key for key in ("schedule.stable_images", "schedule.fade_images") if self.given.has(key)}
        tables = {"schedule.stable_images": self._stable, "schedule.fade_images": self._fade}
        held = growth_seconds(each, *(table if key in given else {MIN_RESOLUTION: 0} for key, table in tables.items()))
        growth = growth_seconds(each, *tables.values()) - held
        fitting = (GROWTH_SHARE * self.seconds - held) / growth if growth else 1.0
        factor = max(fitting, 1.0) if worth else min(fitting, 1.0)

        def of_level(key: str, level: int) -> int:
            images = value_at(tables[key], level)
            if key in given:
                return int(images)
            return two_digits(min(factor * images, MAX_IMAGES), least=int(value_at(batch, level)))

        levels = sorted(each)
        stable = {level: of_level("schedule.stable_images", level) for level in levels[:-1]}
        fade = {level: of_level("schedule.fade_images", level) for level in levels[1:]}
        growing = growth_seconds(each, stable, fade)
        stable[side] = two_digits((self.seconds - growing) / each[side], least=int(value_at(batch, side)))
        why = f"growth has {growing / self.seconds:.0%} of the time"
        if not worth:
            why = f"fewer than are worth it: {side}x{side} with these networks should have more time"
        self._take_all(
            {"schedule.stable_images": stable, "schedule.fade_images": fade or 0}, f"{why}, {side}x{side} the rest"
        )
        if "schedule.stable_images" in given or self.config.schedule.total_images is not None:
            ends = f"{side}x{side} lasts until the hours are over, however many images it is given"
            if growing > self.seconds:
                ends = f"the hours are over before {side}x{side} is reached and faded in"
            self.found.append(Choice("schedule.total_images", None, ends))
        if side < PUBLISHED_FROM:
            falling = two_digits(FALLING_SHARE * stable[side], least=0)
            self._take(
                "schedule.lr_decay_images", falling, f"the last {FALLING_SHARE:.0%} of {side}x{side}, the demo's"
            )
        return sum(stable.values()) + sum(fade.values())

    def _scaled_lengths(self, each: Mapping[int, float]) -> int:
        """Take the lengths of a recipe times the factor with which they fill the time."""
        config, schedule = self.config.schedule, self.config.schedule.build()
        shown = schedule.images_between(0, schedule.total)
        phases = list(zip(schedule.phases, shown, strict=True))
        factor = self.seconds / sum(images * each[phase.resolution] for phase, images in phases)
        reason = f"the recipe's times {factor:.3g}, which fill the time"
        total = 0
        for key, fading in (("stable_images", False), ("fade_images", True)):
            lengths = {
                phase.resolution: two_digits(factor * images, least=phase.batch)
                for phase, images in phases
                if phase.fading is fading
            }
            total += sum(lengths.values())
            self.found.append(Choice(f"schedule.{key}", lengths or 0, reason))
        decay = two_digits(factor * config.lr_decay_images, least=0)
        self.found.append(Choice("schedule.lr_decay_images", decay, reason))
        self.found.append(Choice("schedule.total_images", None, "decided on the way, to end in time"))
        return total

    # ---- training ----

    def _loss(self, side: int, batch: PerResolution) -> str:
        """Choose the loss; returns its name."""
        published = side >= PUBLISHED_FROM
        why = (
            f"at {side}x{side}, what was published" if published else "the demo's, with lazy R1: two thirds of the time"
        )
        name = "wgan_gp" if published else "logistic"
        self._take("loss", name, why)
        name = str(self.config.loss["name"]) if self.given.has("loss.name") else name
        if name == "wgan_gp":
            return name
        size = int(value_at(batch, side))
        rule = 0.0002 * side**2 / size
        least = MIN_GAMMA if self.facts.drawn or side > PHOTOGRAPHS_MEASURED else MIN_GAMMA_OF_PHOTOGRAPHS
        less = "" if rule >= least else f"; at least {least:g}, because less was worse in runs of minutes"
        reason = f"0.0002 x {side}^2 / {size} (StyleGAN2-ADA) = {rule:.2g}{less}"
        self._take("loss.gamma", float(f"{max(least, rule):.2g}"), reason)
        if name == "logistic":
            self._take("loss.reg_interval", REG_INTERVAL, "as in the demo")
        return name

    def _rates(self, networks: NetworkSizes) -> None:
        width = max((width for width in WIDTHS if width <= networks.fmap_max), default=WIDTHS[0])
        rate_g = rate_d = RATES[width]
        reason = f"for {width} feature maps: from 0.006 for 64 (ORL) down to 0.0025 for 512 (StyleGAN2-ADA)"
        if networks.resolution >= PUBLISHED_FROM:
            rate_g, rate_d, reason = PUBLISHED_RATE, PUBLISHED_RATE, "the official preset's"
        elif self.facts.drawn and width == WIDTHS[0]:
            (rate_g, rate_d), reason = DRAWN_RATES, "the demo's"
        self._take_all({"schedule.learning_rate_g": rate_g, "schedule.learning_rate_d": rate_d}, reason)

    def _blocks(self, networks: NetworkSizes) -> None:
        """Choose layers that the paper does not have, by the images that they were better on (lab book)."""
        if self.facts.drawn and networks.resolution < PUBLISHED_FROM and networks.fmap_max < WIDTHS[1]:
            self._take("model.residual", value=True, reason="the demo's")
        elif not self.facts.drawn and networks.resolution <= PHOTOGRAPHS_MEASURED and self.facts.channels in (1, 3):
            self._take("model.blur", value=True, reason="fewer grid artifacts in photographs, in short runs")
            if self.facts.channels == 1:
                self._take("model.noise", value=True, reason="for the texture of grey photographs, the ORL run's")

    def _small_data(self, loss: str, images: int) -> None:
        if self.facts.drawn:
            self._take("data.mirror", value=False, reason="as in the demo")
        elif self.facts.images < FEW_IMAGES and loss != "wgan_gp":
            reason = f"fewer than {FEW_IMAGES:,} images: a discriminator would learn them by heart"
            self._take("augmentation", "ada", reason)
            if not self.given.has("augmentation.name"):
                speed = two_digits(min(images / 2, MAX_RAMPUP_IMAGES), least=1)
                self._take("augmentation.rampup_images", speed, "p can rise to its limit within the run")

    def _reports(self, images: int) -> None:
        """Choose how a run of `images` averages, and how often it reports and saves."""
        half_life = two_digits(min(max(images / 60, 1000), 10_000), least=1)
        self._take("ema.half_life_images", half_life, "a sixtieth of the run, but 1,000 to 10,000 images")
        short = images < 200_000
        self._take("ema.rampup", 0.2 if short else 0.05, "the demo's" if short else "StyleGAN2-ADA's")
        for key, parts in (("monitor.tick_images", 60), ("monitor.grid_images", 12), ("checkpoint.every_images", 3)):
            self._take(key, one_two_five(images / parts), f"about {parts} in the run")


def growth_seconds(each: Mapping[int, float], stable: PerResolution, fade: PerResolution) -> float:
    """The time of growing to the highest level of `each`, which are the seconds of an image by level.

    Args: stable, fade: the images of the phases.
    """
    levels = sorted(each)
    parts = ((stable, levels[:-1]), (fade, levels[1:]))
    return sum(value_at(images, side) * each[side] for images, sides in parts for side in sides)


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
