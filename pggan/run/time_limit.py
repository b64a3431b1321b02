"""Ending a run in the hours that it was given: growth and last image are planned anew at every tick.

On a machine that is so slow that growth would take more than its share of the hours, the phases to come become shorter,
so that the final resolution still has time.  Phases that have begun stay as they are.  The fall of the learning rates
keeps its share of the last phase, until it begins.

Where no learning rate falls, the end of a schedule decides nothing before it; where one falls, the end stays as it is
from the image on at which that begins.  So a run of the images that were shown in the end repeats every bit.

Only where a machine becomes so slow during the fall that the run would be late, the end comes nearer.  The rates then
go down at once by as much as the images left out would have taken them, and end at 0 all the same.  The end alone says
which rates follow, so a run resumes bit by bit; but one of as many images begins to fall earlier than this one did.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pggan.core.schedule import Schedule
from pggan.run.eta import Eta, until

TRAINING_SHARE = 0.98  # of the hours; in the rest, the run saves its end
KNOWN_SHARE = 0.1  # of the hours; before, the lowest levels say too little about a machine to shorten growth by it
# What is planned on the way, as state.json has it; the first two where growth has a share of the hours.
PLANNED = ("growth_images", "lr_decay_images", "total_images")
LATE_SHARE = 1.05  # of the hours; where training would take more, its end comes nearer even while the rates fall


@dataclass(frozen=True)
class TimeLimit:
    """The wall-clock budget of a run, which includes starting up and all commands that have resumed it.

    Args: eta: of this run; began: when this process began to train, by the clock of `eta`; spent: seconds before that;
    configured: the schedule as the configuration has it; max_growth_share: of the hours, 0 to 1, that growth may take,
    None: whatever it takes.
    """

    hours: float
    eta: Eta
    began: float
    spent: float
    configured: Schedule
    max_growth_share: float | None = None

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

    @property
    def planned(self) -> dict[str, Any]:
        """The part of the schedule that is planned on the way, as plain values."""
        schedule = self.eta.schedule
        growth = {"growth_images": [*schedule.growth_images], "lr_decay_images": schedule.lr_decay_images}
        return {**({} if self.max_growth_share is None else growth), "total_images": schedule.total}

    def planned_end(self, now: datetime) -> str:
        """The time that is left as a run begins or resumes, and its end, as text."""
        return f"{until(max(self.seconds, 0.0), now)}, as hours={self.hours:g} asks for"

    def plan(self, images: int, now: float, reserve: float = 0.0) -> None:
        """Give `eta` the schedule that ends in time, after `images` shown at `now`.

        Args: reserve: seconds of what comes after the last image, besides saving.
        """
        self.eta.observe(images, now)
        schedule, spent = self.eta.schedule, self.spent_seconds(now) + reserve
        if images >= schedule.total - schedule.decay_images:
            latest = self.eta.images_after(LATE_SHARE * 3600 * self.hours - spent, images)
            total = min(schedule.total, max(latest, images + 1))
        else:
            self.eta.schedule = schedule = self._with_growth_in_time(images, now)
            reached = self.eta.images_after(TRAINING_SHARE * 3600 * self.hours - spent, images)
            if self.max_growth_share is not None:  # the fall keeps its share of the last phase
                last, configured = schedule.phases[-1], self.configured.phases[-1]
                share = max(reached - last.start, 0) / max(configured.end - configured.start, 1)
                schedule = replace(schedule, lr_decay_images=int(share * self.configured.lr_decay_images))
            # The rates shown so far stay as they were: the fall begins with the next image at the earliest.
            total = max(reached, images + 1 + min(schedule.lr_decay_images, images))
        self.eta.schedule = replace(schedule, total_images=total)

    def _with_growth_in_time(self, images: int, now: float) -> Schedule:
        """The schedule whose phases to come are as configured, or shorter, so that growth keeps to its share."""
        schedule, share = self.eta.schedule, self.max_growth_share
        to_come = [phase.index for phase in schedule.phases[:-1] if phase.start >= images]
        if share is None or not to_come or self.spent_seconds(now) < KNOWN_SHARE * 3600 * self.hours:
            return schedule
        growth = [*schedule.growth_images]
        for index in to_come:
            growth[index] = self.configured.growth_images[index]
        whole = schedule.with_growth(growth)
        times, correction = self.eta.phase_times, self.eta.correction
        growing = correction * times.seconds(whole, images, whole.phases[-1].start)
        late = self.spent_seconds(now) + growing - share * 3600 * self.hours
        if late <= 0:
            return whole
        coming = correction * sum(times.seconds_per_image[index] * growth[index] for index in to_come)
        kept = max(1 - late / coming, 0)
        for index in to_come:
            growth[index] = max(int(kept * growth[index]), min(schedule.phases[index].batch, growth[index]))
        return whole.with_growth(growth)


def with_plan(schedule: Schedule, plan: Mapping[str, Any]) -> Schedule:
    """`schedule` with what a time limit has planned, such as it is in a checkpoint; what is not there stays."""
    growth, decay, total = (plan.get(key) for key in PLANNED)
    if growth is not None and len(growth) == len(schedule.growth_images):
        schedule = schedule.with_growth(growth)
    decay = schedule.lr_decay_images if decay is None else decay
    return replace(schedule, lr_decay_images=decay, total_images=total or schedule.total_images)
