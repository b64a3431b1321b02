"""How long a run still takes, and where it ends if it was given hours: by what its steps were measured to take."""

from bisect import bisect_right
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from pggan.core.schedule import Course, Schedule
from pggan.core.text import duration
from pggan.training.timing import PhaseTimes

# What a run took before half of its time counts half: the level in training says most about those to come, but ticks of
# seconds differ much.
HALF_LIFE_SECONDS, HALF_LIFE_SHARE = 60.0, 0.5
TRUSTED_SECONDS = 3.0  # of training count as much as a measured time: a slow machine is to be believed within a minute
TRAINING_SHARE = 0.98  # of the hours; in the rest, the run saves its end
KNOWN_SHARE = 0.1  # of the hours; before, the lowest levels say too little about a machine to shorten growth by it
PLANNED = ("growth_images", "lr_decay_images", "total_images")  # on the way, as state.json has it
ENDLESS = 10**12  # images


@dataclass
class Eta:
    """Seconds until a run ends: the expected time of each phase, times the ratio of measured to expected time so far.

    Grids, checkpoints and evaluations count as time of the images after which they come.

    Args: images: shown already; now: by the clock of all later calls, in seconds.
    """

    course: Course
    phase_times: PhaseTimes
    images: int
    now: float

    def __post_init__(self) -> None:
        self._took = self._expected = TRUSTED_SECONDS if self.phase_times.measured else 0.0
        self._began = self.now

    def observe(self, images: int, now: float) -> None:
        """Take in that `images` have been shown at `now`."""
        took, expected = now - self.now, self.phase_times.seconds(self.course.schedule, self.images, images)
        kept = 0.5 ** (took / max(HALF_LIFE_SECONDS, HALF_LIFE_SHARE * (now - self._began)))
        self._took, self._expected = self._took * kept + took, self._expected * kept + expected
        self.images, self.now = images, now

    def seconds_between(self, before: int, after: int, schedule: Schedule | None = None) -> float:
        """The seconds from one image count to another, as the run goes; by its schedule, or another of its phases."""
        ratio = self._took / self._expected if self._expected > 0 else 1.0
        return ratio * self.phase_times.seconds(schedule or self.course.schedule, before, after)

    def images_after(self, seconds: float, images: int) -> int:
        """The image count that is reached `seconds` after `images`; the last phase is prolonged if need be."""
        endless, counts = replace(self.course.schedule, total_images=ENDLESS), range(images + 1, ENDLESS)
        return images + bisect_right(counts, seconds, key=lambda count: self.seconds_between(images, count, endless))


@dataclass(frozen=True)
class TimeLimit:
    """The hours of a run, which include starting up and all commands that have resumed it.

    Args: eta: of this run; began: when training would have begun if it had never stopped, by the clock of `eta`;
    configured: the schedule as the configuration has it.
    """

    hours: float
    eta: Eta
    began: float
    configured: Schedule

    @property
    def planned(self) -> dict[str, Any]:
        """The part of the schedule that is planned on the way, as plain values."""
        schedule = self.eta.course.schedule
        return dict(zip(PLANNED, ([*schedule.growth_images], schedule.lr_decay_images, schedule.total), strict=True))

    def plan(self, images: int, now: float, reserve: float = 0.0) -> None:
        """Give the course the schedule that ends in time, after `images` shown at `now`.

        Growth that would leave the last phase less than half of its planned time, and of what is left, becomes shorter.
        The fall of the learning rates keeps its share of the last phase.
        Args: reserve: seconds of what comes after the last image, besides saving.
        """
        eta, course, last, whole = self.eta, self.eta.course, self.configured.phases[-1], 3600 * self.hours
        spent = now - self.began
        eta.observe(images, now)
        left = TRAINING_SHARE * whole - spent - reserve
        if spent > KNOWN_SHARE * whole and left > 0:
            start, end = (eta.phase_times.seconds(self.configured, 0, count) for count in (last.start, last.end))
            course.schedule = self._grown_within(left - min((1 - start / end) * whole, left) / 2, images)
        reached = eta.images_after(left, images)
        share = self.configured.lr_decay_images / max(last.end - last.start, 1)
        decay = int(share * max(reached - course.schedule.phases[-1].start, 0))
        course.schedule = replace(course.schedule, lr_decay_images=decay, total_images=max(reached, images + 1))

    def _grown_within(self, seconds: float, images: int) -> Schedule:
        """The schedule with the rest of growth as configured, or shorter by one factor, for so many seconds.

        So a fade comes to its end, too.  A phase that has begun never becomes longer.
        """
        schedule, planned = self.eta.course.schedule, self.configured.growth_images
        phases = zip(schedule.phases[:-1], planned, strict=True)
        schedule = schedule.with_growth([of.end - of.start if of.start < images else count for of, count in phases])
        first = schedule.phases[-1].start
        share = seconds / max(self.eta.seconds_between(images, first, schedule), seconds)
        left = zip(schedule.growth_images, schedule.images_between(images, first)[:-1], strict=True)
        return schedule.with_growth([count - rest + ceil(share * rest) for count, rest in left])


def with_plan(schedule: Schedule, plan: dict[str, Any]) -> Schedule:
    """`schedule` with the part that a time limit has planned, as a checkpoint has it; other parts stay."""
    growth = plan.get("growth_images", ())
    schedule = schedule.with_growth(growth) if len(growth) == len(schedule.growth_images) else schedule
    return replace(schedule, **{key: plan[key] for key in PLANNED[1:] if key in plan})


def until(seconds: float, now: datetime) -> str:
    """So many seconds from `now`, and the time of day at which they end."""
    end = now + timedelta(seconds=min(seconds, 3e9))  # a century
    clock = f"{end:%H:%M}" if end.date() == now.date() else f"{end:%H:%M on %d %B %Y}"
    return f"about {duration(seconds)}, until {clock}"
