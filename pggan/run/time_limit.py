"""Ending a run in the hours that it was given: its last image is planned anew at every tick.

Where no learning rate falls, the end of a schedule decides nothing before it; where one falls, the end stays as it is
from the image on at which that begins.  So a run of the images that were shown in the end repeats every bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pggan.run.eta import Eta

TRAINING_SHARE = 0.97  # of the hours; in the rest, the recipe is chosen, and the run starts and saves its end


@dataclass(frozen=True)
class TimeLimit:
    """The time that a run may take, in all of its processes together.

    Args: eta: of this run; began: when this process began to train, by the clock of `eta`; spent: seconds before that.
    """

    hours: float
    eta: Eta
    began: float
    spent: float

    @classmethod
    def of(cls, hours: float, header: Mapping[str, Any], eta: Eta, now: float) -> "TimeLimit":
        """The limit of a run that starts `now` from a checkpoint with this `header`; from nothing if it is empty."""
        return cls(hours, eta, now, float(header.get("spent_seconds", 0.0)))

    def spent_seconds(self, now: float) -> float:
        """Seconds of training until `now`."""
        return self.spent + now - self.began

    def last_image(self, images: int, now: float) -> int:
        """The image count at which the run is to end, after `images` shown at `now`: at least one more."""
        self.eta.observe(images, now)
        schedule = self.eta.schedule
        if images >= schedule.total - schedule.lr_decay_images:
            return schedule.total
        left = TRAINING_SHARE * 3600 * self.hours - self.spent_seconds(now)
        return max(self.eta.images_after(left, images), images + 1 + schedule.lr_decay_images)
