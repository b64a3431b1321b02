"""How long a run still takes, and where it ends if it was given hours: by what its steps were measured to take."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pggan.core.schedule import Course, Schedule
from pggan.core.text import duration
from pggan.training.timing import PhaseTimes

# What a run took before half of its time counts half, since the level in training says most about those to come, and
# other work comes and goes; but not what it took a minute ago: ticks of seconds differ much.
HALF_LIFE_SECONDS, HALF_LIFE_SHARE = 60.0, 0.5
TRUSTED_SECONDS = 3.0  # of training count as much as a measured time: a slow machine is to be believed within a minute
TRAINING_SHARE = 0.98  # of the hours; in the rest, the run saves its end
KNOWN_SHARE = 0.1  # of the hours; before, the lowest levels say too little about a machine to shorten growth by it
PLANNED = ("growth_images", "lr_decay_images", "total_images")  # on the way, as state.json has it


@dataclass
class Eta:
    """From images to seconds and back, for the rest of one run.

    Expected are the seconds per image of every phase.  A correction, which is taken over the whole rest, is the ratio
    of what the images shown have taken to what was expected of them; grids, checkpoints and all else count as theirs,
    but evaluations that have a share of the run do not.

    Args: images: shown already; now: by the clock of all later calls, in seconds; evaluation_share: of the time.
    """

    course: Course
    phase_times: PhaseTimes
    images: int
    now: float
    evaluation_share: float = 0.0

    def __post_init__(self) -> None:
        self._took = self._expected = TRUSTED_SECONDS if self.phase_times.measured else 0.0
        self._began = self.now

    def evaluated(self, seconds: float) -> None:
        """Take in that so much of the time since the last observation was an evaluation."""
        if self.evaluation_share:
            self.now += seconds

    def observe(self, images: int, now: float) -> None:
        """Take in that `images` have been shown at `now`."""
        took, expected = now - self.now, self.phase_times.seconds(self.course.schedule, self.images, images)
        kept = 0.5 ** (took / max(HALF_LIFE_SECONDS, HALF_LIFE_SHARE * (now - self._began)))
        self._took, self._expected = self._took * kept + took, self._expected * kept + expected
        self.images, self.now = images, now

    def seconds_between(self, before: int, after: int) -> float:
        """The seconds from one image count to another, as the run goes."""
        ratio = self._took / self._expected if self._expected > 0 else 1.0
        return ratio / (1 - self.evaluation_share) * self.phase_times.seconds(self.course.schedule, before, after)

    def seconds_left(self, images: int) -> float:
        """Seconds from `images` to the end of the schedule."""
        return self.seconds_between(images, self.course.schedule.total)

    def images_after(self, seconds: float, images: int) -> int:
        """The image count that is reached `seconds` after `images`; the last phase is prolonged if need be."""
        phases = self.course.schedule.phases
        for phase in phases:
            end = max(phase.end, images)
            needed = self.seconds_between(images, end)
            if needed > seconds or phase is phases[-1]:
                break
            seconds, images = seconds - needed, end
        one = self.seconds_between(phase.start, phase.start + 1)
        return images + int(max(seconds, 0.0) / one)

    def end(self, images: int, now: datetime) -> str:
        """The time that the run is expected to take from `images` on, and its end, as text."""
        if images >= self.course.schedule.total:
            return "none: all images have been shown"
        how = "measured" if self.phase_times.measured else "a first guess, by operations"
        return f"{until(self.seconds_left(images), now)} ({how})"


@dataclass(frozen=True)
class TimeLimit:
    """The hours of a run, which include starting up and all commands that have resumed it.

    At every tick, the schedule is planned anew: growth that would leave the final resolution less than half of its
    planned time, and of what is left, becomes shorter; the last image is the one for which there is time; the fall of
    the learning rates keeps its share of the last phase.

    Args: eta: of this run; began: when this process began to train, by the clock of `eta`; spent: seconds before that;
    configured: the schedule as the configuration has it.
    """

    hours: float
    eta: Eta
    began: float
    spent: float
    configured: Schedule

    def spent_seconds(self, now: float) -> float:
        """Seconds of training until `now`."""
        return self.spent + now - self.began

    @property
    def planned(self) -> dict[str, Any]:
        """The part of the schedule that is planned on the way, as plain values."""
        schedule = self.eta.course.schedule
        return dict(zip(PLANNED, ([*schedule.growth_images], schedule.lr_decay_images, schedule.total), strict=True))

    def plan(self, images: int, now: float, reserve: float = 0.0) -> None:
        """Give the course the schedule that ends in time, after `images` shown at `now`.

        Args: reserve: seconds of what comes after the last image, besides saving.
        """
        course, eta, configured, whole = self.eta.course, self.eta, self.configured, 3600 * self.hours
        eta.observe(images, now)
        left = TRAINING_SHARE * whole - self.spent_seconds(now) - reserve
        if self.spent_seconds(now) > KNOWN_SHARE * whole and left > 0:
            start, end = configured.phases[-1].start, configured.phases[-1].end
            last = 1 - eta.phase_times.seconds(configured, 0, start) / eta.phase_times.seconds(configured, 0, end)
            self._grow_within(max(left - last / 2 * whole, left / 2), images)
        reached = eta.images_after(left, images)
        share = configured.lr_decay_images / max(configured.phases[-1].end - configured.phases[-1].start, 1)
        decay = int(share * max(reached - course.schedule.phases[-1].start, 0))
        course.schedule = replace(course.schedule, lr_decay_images=decay, total_images=max(reached, images + 1))

    def _grow_within(self, seconds: float, images: int) -> None:
        """Let the rest of growth be as configured, or so much shorter, by one factor, that it ends in so many seconds.

        So a fade comes to its end, too.  A phase that has begun never becomes longer.
        """
        course, growth = self.eta.course, [*self.configured.growth_images]
        for phase in course.schedule.phases[:-1]:
            if phase.start < images:
                growth[phase.index] = phase.end - phase.start
        course.schedule = course.schedule.with_growth(growth)
        needed = self.eta.seconds_between(images, course.schedule.phases[-1].start)
        if needed > seconds:
            for phase in course.schedule.phases[:-1]:
                shown = max(images - phase.start, 0)
                if (left := growth[phase.index] - shown) > 0:
                    growth[phase.index] = shown + max(int(seconds / needed * left), min(phase.batch, left))
            course.schedule = course.schedule.with_growth(growth)


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
