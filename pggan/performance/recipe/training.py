"""Loss, learning rates, layers, augmentation, EMA and reports: by resolution, width, and kind of image."""

from pggan.config.train import MIN_GAMMA, gamma_by_rule
from pggan.core.architecture import MIN_RESOLUTION
from pggan.core.schedule import PerResolution, value_at
from pggan.performance.recipe.choices import Choices
from pggan.performance.recipe.lengths import PUBLISHED_FROM
from pggan.performance.recipe.rounding import one_two_five, two_digits
from pggan.performance.recipe.situation import SHORT_RUN, NetworkSizes, Situation
from pggan.performance.recipe.sizes import WIDTHS

RATES = {64: 0.006, 128: 0.005, 256: 0.0035, 512: 0.0025}  # the ORL run's, StyleGAN2-ADA's, and between them
DRAWN_RATES = 0.02, 0.01  # of G and D, the demo's
PUBLISHED_RATE = 0.001
MIN_GAMMA_OF_PHOTOGRAPHS = 12.0  # the ORL run's, up to PHOTOGRAPHS_MEASURED
PHOTOGRAPHS_MEASURED = 64  # the highest resolution of photographs at which gamma was measured
BILATERAL_PASSES = 4  # the demo's
REG_INTERVAL = 8  # the demo's and the ORL run's
FEW_IMAGES = 5000  # fewer are augmented
MAX_RAMPUP_IMAGES = 500_000  # over which p may rise from 0 to 1, as in StyleGAN2-ADA; in short runs over fewer
TICK_SECONDS = 120  # in runs of more than two hours; five ticks to a grid


def choose_loss(situation: Situation, choices: Choices, side: int, batch: PerResolution) -> str:
    """Choose the loss for a final resolution, and its penalty; returns its name."""
    published = side >= PUBLISHED_FROM
    why = f"at {side}x{side}, what was published" if published else "the demo's, with lazy R1: two thirds of the time"
    name = "wgan_gp" if published else "logistic"
    choices.take("loss", name, why)
    name = situation.config.loss.name if situation.given.has("loss.name") else name
    if name == "wgan_gp":
        return name
    size = int(value_at(batch, side))
    rule = gamma_by_rule(side, size)
    # Of photographs, the logistic loss alone was tried with other ones; experiment=relativistic has MIN_GAMMA.
    photographs = not situation.facts.drawn and side <= PHOTOGRAPHS_MEASURED and name == "logistic"
    least = MIN_GAMMA_OF_PHOTOGRAPHS if photographs else MIN_GAMMA
    why = "because less was worse (lab book)" if name == "logistic" else f"as in experiment={name}"
    less = "" if rule >= least else f"; at least {least:g}, {why}"
    reason = f"0.0002 x {side}^2 / {size} (StyleGAN2-ADA) = {rule:.2g}{less}"
    choices.take("loss.gamma", float(f"{max(least, rule):.2g}"), reason)
    if name == "logistic":
        choices.take("loss.reg_interval", REG_INTERVAL, "as in the demo")
    return name


def choose_rates(situation: Situation, choices: Choices, sizes: NetworkSizes) -> None:
    """Choose the learning rates of G and D; beside a given one of G, that of D follows it."""
    maps = situation.width(sizes, MIN_RESOLUTION)
    width = max((width for width in WIDTHS if width <= maps), default=WIDTHS[0])
    rate_g = rate_d = RATES[width]
    reason = f"for {maps} feature maps: from 0.006 for 64 (ORL) down to 0.0025 for 512 (StyleGAN2-ADA)"
    if sizes.resolution >= PUBLISHED_FROM:
        rate_g, rate_d, reason = PUBLISHED_RATE, PUBLISHED_RATE, "the official preset's"
    elif situation.facts.drawn and width == WIDTHS[0]:
        (rate_g, rate_d), reason = DRAWN_RATES, "the demo's"
    if not situation.given.has("schedule.learning_rate_g"):
        choices.take_all({"schedule.learning_rate_g": rate_g, "schedule.learning_rate_d": rate_d}, reason)


def choose_layers(situation: Situation, choices: Choices, sizes: NetworkSizes) -> None:
    """Choose layers that the paper does not have, by the images that they were better on (lab book)."""
    facts = situation.facts
    if facts.drawn and sizes.resolution < PUBLISHED_FROM:
        choices.take("model.bilateral", BILATERAL_PASSES, "for flat areas, the demo's")
        if sizes.fmap_max < WIDTHS[1]:
            choices.take("model.residual", value=True, reason="the demo's")
    elif not facts.drawn and sizes.resolution <= PHOTOGRAPHS_MEASURED and facts.channels in (1, 3):
        choices.take("model.blur", value=True, reason="fewer grid artifacts in photographs, in short runs")


def choose_augmentation(situation: Situation, choices: Choices, loss: str, images: int) -> None:
    """Choose what D sees of the images, in a run of `images`."""
    augmentation = situation.config.augmentation
    name = augmentation.name
    if situation.facts.drawn:
        choices.take("data.mirror", value=False, reason="as in the demo")
    elif situation.facts.images < FEW_IMAGES and loss != "wgan_gp":
        reason = f"fewer than {FEW_IMAGES:,} images: a discriminator would learn them by heart"
        choices.take("augmentation", "ada", reason)
        if not situation.given.has("augmentation.name"):
            name = "ada"
    if name == "ada" and getattr(augmentation, "p", None) is None:
        speed = two_digits(min(images / 2, MAX_RAMPUP_IMAGES), least=1)
        choices.take("augmentation.rampup_images", speed, "p can rise to its limit within the run")


def choose_channels(situation: Situation, choices: Choices) -> None:
    """Choose what images of different channels become."""
    if situation.facts.mixed:
        choices.take(
            "data.channels", situation.facts.channels, "some are grey or transparent, which become colours on white"
        )


def choose_reports(situation: Situation, choices: Choices, images: int) -> None:
    """Choose how a run of `images` averages, and how often it reports and saves."""
    half_life = two_digits(min(max(images / 60, 1000), 10_000), least=1)
    choices.take("ema.half_life_images", half_life, "a sixtieth of the run, but 1,000 to 10,000 images")
    short = images < SHORT_RUN
    choices.take("ema.rampup", 0.2 if short else 0.05, "the demo's" if short else "StyleGAN2-ADA's")
    ticks = round(min(max(situation.seconds / TICK_SECONDS, 60), 600))
    parts = {"monitor.tick_images": ticks, "monitor.grid_images": ticks // 5, "checkpoint.every_images": 3}
    for key, count in parts.items():
        choices.take(key, one_two_five(images / count), f"about {count} in the run")
