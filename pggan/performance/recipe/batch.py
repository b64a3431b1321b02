"""How many images a batch has: what was best on such images, as far as there are enough of them."""

from pggan.core.architecture import MIN_RESOLUTION
from pggan.core.errors import UserError
from pggan.core.schedule import PerResolution
from pggan.performance.recipe.choices import Choices
from pggan.performance.recipe.situation import SHORT_RUN, Situation

# On a CPU. 8 make twice the updates of 16 (263 portraits: KID 372 and 378 instead of 678 and 764; avatars after 65,000
# images 477 instead of 530), but long runs end worse (avatars after 476,000 images: 268 instead of 217; lab book).
SHORT_RUN_BATCH, LONG_RUN_BATCH = 8, 16
GPU_BATCH = {4: 128, 32: 64, 64: 32, 128: 16, 256: 8, 512: 4}  # the official preset's for one GPU
MIN_IMAGES = 2  # in a batch


def batch_sizes(situation: Situation, resolution: int, *, short: bool = True) -> dict[int, int]:
    """The given or the best number of images per batch, at the levels up to `resolution` from which it holds.

    Args: short: whether the run is a short one.
    """
    if situation.given.has("schedule.batch"):
        return {side: int(batch) for side, batch in situation.config.schedule.build().batch.items()}
    batch = GPU_BATCH
    if situation.machine.kind == "cpu":
        batch = {MIN_RESOLUTION: SHORT_RUN_BATCH if short else LONG_RUN_BATCH}
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


def choose_batch(situation: Situation, choices: Choices, resolution: int, *, short: bool) -> PerResolution:
    """Choose the images per batch at all levels up to `resolution`, of a short run or a long one; returns them."""
    batch = batch_sizes(situation, resolution, short=short)
    reason = "the official preset's for one GPU"
    if situation.machine.kind == "cpu":
        runs = f"runs of fewer than {SHORT_RUN:,} images" if short else f"runs of {SHORT_RUN:,} images and more"
        reason = f"better in {runs} than {LONG_RUN_BATCH if short else SHORT_RUN_BATCH}"
    if situation.machine.ranks > 1:
        reason += ", at least a group of minibatch stddev for every rank"
    if most_batch(situation) in batch.values():
        reason += f"; the images fill {most_batch(situation)}"
    choices.take("schedule.batch", batch, reason)
    return batch
