"""Ending a run in the hours that it was given: its last image is planned anew at every tick.

Where no learning rate falls, the end of a schedule decides nothing before it; where one falls, the end stays as it is
from the image on at which that begins.  So a run of the images that were shown in the end repeats every bit.

Only where a machine becomes so slow during the fall that the run would be late, the end comes nearer.  The rates then
go down at once by as much as the images left out would have taken them, and end at 0 all the same.  The end alone says
which rates follow, so a run resumes bit by bit; but one of as many images begins to fall earlier than this one did.
"""

from dataclasses import dataclass
from datetime import datetime

from pggan.run.eta import Eta, until

TRAINING_SHARE = 0.98  # of the hours; in the rest, the run saves its end
LATE_SHARE = 1.05  # of the hours; where training would take more, its end comes nearer even while the rates fall


@dataclass(frozen=True)
class TimeLimit:
    """The wall-clock budget of a run, which includes starting up and all commands that have resumed it.

    Args: eta: of this run; began: when this process began to train, by the clock of `eta`; spent: seconds before that.
    """

    hours: float
    eta: Eta
    began: float
    spent: float

    @property
    def seconds(self) -> float:
        """Seconds that this process has."""
        return 3600 * self.hours - self.spent

    @property
    def seconds_per_image(self) -> float:
        """Seconds of an image at the end."""
        return self.eta.correction * self.eta.phase_times.seconds_per_image[-1]

    def spent_seconds(self, now: float) -> float:
        """Seconds of training until `now`."""
        return self.spent + now - self.began

    def planned_end(self, now: datetime) -> str:
        """The time that is left as a run begins or resumes, and its end, as text."""
        return f"{until(max(self.seconds, 0.0), now)}, as hours={self.hours:g} asks for"

    def last_image(self, images: int, now: float, reserve: float = 0.0) -> int:
        """The image count at which the run is to end, after `images` shown at `now`: at least one more.

        Args: reserve: seconds of what comes after the last image, besides saving.
        """
        self.eta.observe(images, now)
        schedule = self.eta.schedule
        spent = self.spent_seconds(now) + reserve
        if images >= schedule.total - schedule.decay_images:
            latest = self.eta.images_after(LATE_SHARE * 3600 * self.hours - spent, images)
            return min(schedule.total, max(latest, images + 1))
        left = TRAINING_SHARE * 3600 * self.hours - spent
        # The rates shown so far stay as they were: the fall begins with the next image at the earliest.
        least = images + 1 + min(schedule.lr_decay_images, images)
        return max(self.eta.images_after(left, images), least)
