"""Estimates the remaining time of a run, and fits the schedule into a time limit."""

from bisect import bisect_right
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from pggan.core.schedule import Course, Schedule
from pggan.core.text import duration
from pggan.training.timing import PhaseTimes

# The speed is an exponentially weighted mean over steps, with a half-life of 60 s or, if longer, half the elapsed time.
HALF_LIFE_SECONDS, HALF_LIFE_SHARE = 60.0, 0.5
TRUSTED_SECONDS = 3.0  # if steps were timed before training, this timing counts as much as 3 seconds of training
TRAINING_SHARE = 0.98  # training gets this share of the time limit; saving the last checkpoint gets the rest
KNOWN_SHARE = 0.1  # phases are shortened only after 10 % of the time limit, when enough steps have been timed
PLANNED = ("growth_images", "lr_decay_images", "total_images")  # image counts that hours= changes, saved in checkpoints
ENDLESS = 10**12  # an image count that no run reaches


@dataclass
class Eta:
    """Estimates the seconds until a run ends, from the expected time of each phase and the measured speed so far."""

    course: Course
    phase_times: PhaseTimes
    images: int
    now: float  # time of the last speed measurement, on the clock of time.monotonic()
    max_share: float = 0.0  # evaluations are expected to take at most this share of the run's time

    def __post_init__(self) -> None:
        self._took = self._expected = TRUSTED_SECONDS if self.phase_times.measured else 0.0
        self._began, self._evaluating = self.now, 0.0

    def evaluated(self, seconds: float) -> None:
        """Exclude the `seconds` that an evaluation took from the measured training speed."""
        self._evaluating += seconds
        self.now += seconds

    def observe(self, images: int, now: float) -> None:
        took, expected = now - self.now, self.phase_times.seconds(self.course.schedule, self.images, images)
        kept = 0.5 ** (took / max(HALF_LIFE_SECONDS, HALF_LIFE_SHARE * (now - self._began)))
        self._took, self._expected = self._took * kept + took, self._expected * kept + expected
        self.images, self.now = images, now

    def seconds_between(self, before: int, after: int, schedule: Schedule | None = None) -> float:
        """Estimate the seconds from image count `before` to image count `after`, evaluations included."""
        ratio = self._took / self._expected if self._expected > 0 else 1.0
        ratio /= 1 - min(self._evaluating / max(self.now - self._began, 1.0), self.max_share)
        return ratio * self.phase_times.seconds(schedule or self.course.schedule, before, after)

    def images_after(self, seconds: float, images: int) -> int:
        endless, counts = replace(self.course.schedule, total_images=ENDLESS), range(images + 1, ENDLESS)
        return images + bisect_right(counts, seconds, key=lambda count: self.seconds_between(images, count, endless))


@dataclass(frozen=True)
class TimeLimit:
    """Fits a run's schedule to `hours` hours of training; the time before an interruption counts, too."""

    hours: float
    eta: Eta
    began: float  # `time.monotonic() - began` is the time that the run has taken so far
    configured: Schedule  # the schedule that the run would have without a time limit

    def plan(self, images: int, now: float, reserve: float = 0.0) -> None:
        """Change the schedule so that training ends in time, with `reserve` seconds left for the last evaluation.

        Earlier phases are shortened if the last phase would get less than half of its configured share of the time.
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
        """Return the schedule with shorter phases, so that the last phase begins within `seconds` from now."""
        schedule, planned = self.eta.course.schedule, self.configured.growth_images
        # A phase that has begun can't get more images than it has now; later phases, not more than configured.
        phases = zip(schedule.phases[:-1], planned, strict=True)
        schedule = schedule.with_growth([of.end - of.start if of.start < images else count for of, count in phases])
        first = schedule.phases[-1].start
        share = seconds / max(self.eta.seconds_between(images, first, schedule), seconds)
        left = zip(schedule.growth_images, schedule.images_between(images, first)[:-1], strict=True)
        return schedule.with_growth([count - rest + ceil(share * rest) for count, rest in left])


def plan_of(schedule: Schedule) -> dict[str, Any]:
    """Return a dictionary from the keys in PLANNED to the image counts in `schedule`."""
    return dict(zip(PLANNED, ([*schedule.growth_images], schedule.lr_decay_images, schedule.total), strict=True))


def with_plan(schedule: Schedule, plan: dict[str, Any]) -> Schedule:
    """Return a copy of `schedule` with the image counts in `plan` (keys as in PLANNED); missing keys change nothing."""
    growth = plan.get("growth_images", ())
    schedule = schedule.with_growth(growth) if len(growth) == len(schedule.growth_images) else schedule
    return replace(schedule, **{key: plan[key] for key in PLANNED[1:] if key in plan})


def until(seconds: float, now: datetime) -> str:
    """Return a text with the duration `seconds` and the clock time of its end, such as "about 2.3 h, until 12:15"."""
    end = now + timedelta(seconds=min(seconds, 3e9))  # at most a century, because datetime ends in the year 9999
    clock = f"{end:%H:%M}" if end.date() == now.date() else f"{end:%H:%M on %d %B %Y}"
    return f"about {duration(float(f'{seconds:.2g}'))}, until {clock}"
