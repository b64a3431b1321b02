"""How long a run still takes, and where it ends if it was given hours: by what its steps were measured to take.

A run of given hours is planned anew at every tick: growth that would leave the final resolution too little time becomes
shorter, and the last image is that for which there is time.  Phases that have begun stay as they are.  Once the
learning rates fall, the end decides which rates follow; it stays, unless the run would be late.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from pggan.core.schedule import Schedule
from pggan.core.text import duration
from pggan.training.timing import PhaseTimes

# What a run took before half of its time counts half, since the level in training says most about those to come, and
# other work comes and goes; but not what it took a minute ago: ticks of seconds differ much.
HALF_LIFE_SECONDS, HALF_LIFE_SHARE = 60.0, 0.5
TRUSTED_SECONDS = 3.0  # of training count as much as a measured time: a slow machine is to be believed within a minute
LONG_SECONDS = 86_400.0  # a day: what takes longer is said before it starts, and how it could be shorter
TRAINING_SHARE = 0.98  # of the hours; in the rest, the run saves its end
LATE_SHARE = 1.05  # of the hours; where training would take more, its end comes nearer even while the rates fall
KNOWN_SHARE = 0.1  # of the hours; before, the lowest levels say too little about a machine to shorten growth by it
PLANNED = ("growth_images", "lr_decay_images", "total_images")  # on the way, as state.json has it


class Eta:
    """From images to seconds and back, for the rest of one run.

    Expected are the seconds per image of every phase.  A correction, which is taken over the whole rest, is the ratio
    of what the images shown have taken to what was expected of them; grids, checkpoints and all else count as theirs,
    but evaluations that have a share of the run do not.
    """

    def __init__(
        self, schedule: Schedule, phase_times: PhaseTimes, images: int, now: float, *, evaluation_share: float = 0.0
    ) -> None:
        """Args: images: shown already; now: by the clock of all later calls, in seconds; evaluation_share: of the run's
        time, 0 to 1, which is for evaluations.
        """
        self.schedule, self.phase_times, self.evaluation_share = schedule, phase_times, evaluation_share
        self._took = self._expected = TRUSTED_SECONDS if phase_times.measured else 0.0
        self._began = now
        self.restart(images, now)

    def restart(self, images: int, now: float) -> None:
        """Continue from `images`: what the run did since the last observation is not counted."""
        self._images, self._time = images, now

    def evaluated(self, seconds: float) -> None:
        """Take in that so much of the time since the last observation was an evaluation."""
        if self.evaluation_share:
            self._time += seconds

    def observe(self, images: int, now: float) -> None:
        """Take in that `images` have been shown at `now`."""
        took, expected = now - self._time, self.phase_times.seconds(self.schedule, self._images, images)
        kept = 0.5 ** (took / max(HALF_LIFE_SECONDS, HALF_LIFE_SHARE * (now - self._began)))
        self._took, self._expected = self._took * kept + took, self._expected * kept + expected
        self.restart(images, now)

    @property
    def correction(self) -> float:
        """The time that the run takes, divided by that which its steps are expected to take."""
        ratio = self._took / self._expected if self._expected > 0 else 1.0
        return ratio / (1 - self.evaluation_share)

    def seconds_between(self, before: int, after: int) -> float:
        """The seconds from one image count to another, as the run goes."""
        return self.correction * self.phase_times.seconds(self.schedule, before, after)

    def seconds_left(self, images: int) -> float:
        """Seconds from `images` to the end of the schedule."""
        return self.seconds_between(images, self.schedule.total)

    def images_after(self, seconds: float, images: int) -> int:
        """The image count that is reached `seconds` after `images`; the last phase is prolonged if need be."""
        last = self.schedule.phases[-1]
        for phase in self.schedule.phases:
            end = max(phase.end, images)
            needed = self.seconds_between(images, end)
            if needed > seconds or phase is last:
                break
            seconds, images = seconds - needed, end
        one = self.seconds_between(phase.start, phase.start + 1)
        return images + int(max(seconds, 0.0) / one)


@dataclass(frozen=True)
class TimeLimit:
    """The wall-clock budget of a run, which includes starting up and all commands that have resumed it.

    Args: eta: of this run; began: when this process began to train, by the clock of `eta`; spent: seconds before that;
    configured: the schedule as the configuration has it.
    """

    hours: float
    eta: Eta
    began: float
    spent: float
    configured: Schedule

    @property
    def seconds(self) -> float:
        """Seconds that this process has."""
        return 3600 * self.hours - self.spent

    def spent_seconds(self, now: float) -> float:
        """Seconds of training until `now`."""
        return self.spent + now - self.began

    @cached_property
    def max_growth_share(self) -> float:
        """The share of the hours that growth may take: so much that the last phase keeps half of its planned time."""
        last, times = self.configured.phases[-1], self.eta.phase_times
        planned = times.seconds(self.configured, 0, last.start) / times.seconds(self.configured, 0, last.end)
        return (1 + planned) / 2

    @property
    def planned(self) -> dict[str, Any]:
        """The part of the schedule that is planned on the way, as plain values."""
        schedule = self.eta.schedule
        return dict(zip(PLANNED, ([*schedule.growth_images], schedule.lr_decay_images, schedule.total), strict=True))

    def plan(self, images: int, now: float, reserve: float = 0.0) -> None:
        """Give `eta` the schedule that ends in time, after `images` shown at `now`.

        Args: reserve: seconds of what comes after the last image, besides saving.
        """
        eta, whole = self.eta, 3600 * self.hours
        eta.observe(images, now)
        spent = self.spent_seconds(now)
        if images >= eta.schedule.total - eta.schedule.decay_images:
            latest = eta.images_after(LATE_SHARE * whole - spent - reserve, images)
            eta.schedule = replace(eta.schedule, total_images=min(eta.schedule.total, max(latest, images + 1)))
            return
        if spent > KNOWN_SHARE * whole:
            eta.schedule = self._with_growth_in_time(images, self.max_growth_share * whole - spent)
        reached = eta.images_after(TRAINING_SHARE * whole - spent - reserve, images)
        last, configured = eta.schedule.phases[-1], self.configured.phases[-1]  # the fall keeps its share of the last
        share = max(reached - last.start, 0) / max(configured.end - configured.start, 1)
        decay = int(share * self.configured.lr_decay_images)
        # The rates shown so far stay as they were: the fall begins with the next image at the earliest.
        total = max(reached, images + 1 + min(decay, images))
        eta.schedule = replace(eta.schedule, lr_decay_images=decay, total_images=total)

    def _with_growth_in_time(self, images: int, seconds: float) -> Schedule:
        """The schedule whose phases to come are as configured, or shorter, so that growth ends in so many seconds."""
        schedule, eta = self.eta.schedule, self.eta
        to_come = [phase.index for phase in schedule.phases[:-1] if phase.start >= images]
        growth = [*schedule.growth_images]
        for index in to_come:
            growth[index] = self.configured.growth_images[index]
        eta.schedule = whole = schedule.with_growth(growth)
        late = eta.seconds_between(images, whole.phases[-1].start) - seconds
        if not to_come or late <= 0:
            return whole
        kept = max(1 - late / eta.seconds_between(whole.phases[to_come[0]].start, whole.phases[-1].start), 0)
        for index in to_come:
            growth[index] = max(int(kept * growth[index]), min(schedule.phases[index].batch, growth[index]))
        return whole.with_growth(growth)


def with_plan(schedule: Schedule, plan: dict[str, Any]) -> Schedule:
    """`schedule` with the part that a time limit has planned, as a checkpoint has it; other parts stay."""
    growth, decay, total = (plan.get(key) for key in PLANNED)
    if growth is not None and len(growth) == len(schedule.growth_images):
        schedule = schedule.with_growth(growth)
    decay = schedule.lr_decay_images if decay is None else decay
    return replace(schedule, lr_decay_images=decay, total_images=total or schedule.total_images)


def expected_end(eta: Eta, images: int, now: datetime) -> str:
    """The time that the run is expected to take from `images` on, and its end, as text."""
    if images >= eta.schedule.total:
        return "none: all images have been shown"
    how = "measured" if eta.phase_times.measured else "a first guess, by operations"
    return f"{until(eta.seconds_left(images), now)} ({how})"


def until(seconds: float, now: datetime) -> str:
    """So many seconds from `now`, and the time of day at which they end."""
    end = now + timedelta(seconds=min(seconds, 3e9))  # a century
    clock = f"{end:%H:%M}" if end.date() == now.date() else f"{end:%H:%M on %d %B %Y}"
    return f"about {duration(seconds)}, until {clock}"


def too_long(eta: Eta) -> list[str]:
    """One note on a new run that takes longer than a day; else none."""
    if (seconds := eta.seconds_left(0)) <= LONG_SECONDS:
        return []
    images = eta.images_after(8 * 3600, 0)
    images -= images % 10 ** max(len(str(images)) - 2, 0)
    remedy = f"hours=8 chooses a recipe that ends in 8 hours, schedule.total_images={images} ends this one then."
    return [f"This run takes about {duration(seconds)} here. {remedy}"]
