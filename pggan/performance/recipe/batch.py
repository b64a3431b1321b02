"""How many images a batch has: what was best on such images, as far as there are enough of them."""

from pggan.core.architecture import MIN_RESOLUTION
from pggan.core.errors import UserError
from pggan.core.schedule import PerResolution
from pggan.performance.recipe.choices import Choices
from pggan.performance.recipe.situation import Situation

CPU_BATCH = 8  # makes twice the updates of 16 (263 portraits: KID 372 and 378 instead of 678 and 764; lab book)
DRAWN_CPU_BATCH = 16  # the demo's: 8 take a quarter more time, and long runs end worse (lab book)
GPU_BATCH = {4: 128, 32: 64, 64: 32, 128: 16, 256: 8, 512: 4}  # the official preset's for one GPU
MIN_IMAGES = 2  # in a batch


def batch_sizes(situation: Situation, resolution: int) -> dict[int, int]:
    """The given or the best number of images per batch, at the levels up to `resolution` from which it holds."""
    if situation.given.has("schedule.batch"):
        return {side: int(batch) for side, batch in situation.config.schedule.build().batch.items()}
    batch = GPU_BATCH
    if situation.machine.kind == "cpu":
        batch = {MIN_RESOLUTION: DRAWN_CPU_BATCH if situation.facts.drawn else CPU_BATCH}
    least, most = least_batch(situation), most_batch(situation)
    return {side: min(max(size, least), most) for side, size in batch.items() if side <= resolution}


def least_batch(situation: Situation) -> int:
    """A group of minibatch stddev for every rank."""
    return situation.config.model.stddev_group * situation.machine.ranks


def most_batch(situation: Situation) -> int:
    """The largest batch of whole groups that the images fill, or one smaller group of all of them."""
    images = situation.facts.images
    return images - images % least_batch(situation) or images


def require_images(situation: Situation) -> None:
    """Raise UserError unless the images fill a batch that can be chosen."""
    images, ranks = situation.facts.images, situation.machine.ranks
    least = least_batch(situation) if ranks > 1 else MIN_IMAGES
    if images < least and not situation.given.has("schedule.batch"):
        name = situation.config.data.path or f"data.count={images}"
        why = f", a group of minibatch stddev for each of {ranks} ranks" if ranks > 1 else ""
        raise UserError(
            f"{name} has {images} image{'s' * (images != 1)} to train on; {least} are needed{why}.",
            f"Give more images{', or use fewer devices=' * (ranks > 1)}.",
        )


def choose_batch(situation: Situation, choices: Choices, resolution: int) -> PerResolution:
    """Choose the images per batch at all levels up to `resolution`; returns them."""
    batch = batch_sizes(situation, resolution)
    reason = "the official preset's for one GPU"
    if situation.machine.kind == "cpu":
        reason = "the demo's" if situation.facts.drawn else "makes more of the same images than the demo's 16"
    if situation.machine.ranks > 1:
        reason += ", at least a group of minibatch stddev for every rank"
    if most_batch(situation) in batch.values():
        reason += f"; the images fill {most_batch(situation)}"
    choices.take("schedule.batch", batch, reason)
    return batch
