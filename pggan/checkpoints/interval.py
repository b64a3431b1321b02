"""When a checkpoint is begun, and when training waits for it, so that a kill never loses more than an interval."""

import time
from math import inf

from pggan.config import CheckpointConfig
from pggan.core.intervals import is_due

# A checkpoint is written while training continues, so it is begun before the interval is over.  Images: at halves, so
# that the round numbers that people write are among the image counts.  Minutes: what is left is for writing.
IMAGES_SHARE = 0.5
MINUTES_SHARE = 0.75


class CheckpointInterval:
    """Follows the last checkpoint that was begun, and the last one that is durable."""

    def __init__(self, config: CheckpointConfig) -> None:
        self.most_images, self.between = config.every_images, images_between(config)
        self.late_after = seconds_between(config)
        self.most_seconds = self.late_after / MINUTES_SHARE
        self.restart(0)

    def restart(self, images: int) -> None:
        """Count from a state with `images` that is new, or on disk."""
        self._looked = time.monotonic()
        self._begun = self._durable = (images, self._looked)

    def is_due(self, before: int, images: int) -> bool:
        """Whether the step from `before` to `images` has reached a count at which a checkpoint is begun."""
        return is_due(self.between, before, images)

    @property
    def is_late(self) -> bool:
        """Whether it is time for a checkpoint whatever the image count."""
        return time.monotonic() - self._begun[1] > self.late_after

    def begin(self, images: int) -> None:
        """Note that a checkpoint of the present state, at `images`, is begun."""
        self._begun = (images, time.monotonic())

    def saved(self) -> None:
        """Note that the last checkpoint that was begun is durable."""
        self._durable = self._begun

    def must_wait(self, images: int) -> bool:
        """Whether a kill at the end of the next step, at `images`, would lose more than an interval.

        Called once before every step: the next is expected to take as long as the last.
        """
        now = time.monotonic()
        step, self._looked = now - self._looked, now
        return images - self._durable[0] > self.most_images or now + step - self._durable[1] > self.most_seconds


def images_between(config: CheckpointConfig) -> int:
    """Images from the beginning of one checkpoint to that of the next, unless minutes come first."""
    return max(int(IMAGES_SHARE * config.every_images), 1)


def seconds_between(config: CheckpointConfig) -> float:
    """Seconds from the beginning of one checkpoint to that of the next, unless images come first."""
    return inf if config.every_minutes is None else MINUTES_SHARE * 60 * config.every_minutes
