"""How long a run still takes: what its updates are expected to take, corrected by what they have taken."""

import shlex
from datetime import datetime, timedelta

from pggan.core.schedule import Schedule
from pggan.core.tables import duration
from pggan.training.timing import Pace

# Of what a run has taken, the last minutes count most: the level in training says most about those to come, and other
# work on the machine comes and goes.  Twice as long, and the first level still counts when the last has begun.
HALF_LIFE_SECONDS = 60.0
# A measured pace counts as much as so many seconds of training: the first tick has a few steps, and a grid.
TRUSTED_SECONDS = 10.0
LONG_SECONDS = 86_400.0  # a day: what takes longer is said before it starts, and how it could be shorter
WORKING_HOURS = 8  # which is proposed instead


class Eta:
    """From images to seconds and back, for the rest of one run.

    Expected are the seconds per image of every phase.  A correction, which is taken over the whole rest, is the ratio
    of what the images shown have taken to what was expected of them; grids, checkpoints and all else count as theirs.
    """

    def __init__(self, schedule: Schedule, pace: Pace, images: int, now: float) -> None:
        """Args: images: shown already; now: by the clock of all later calls, in seconds."""
        self.schedule, self.pace = schedule, pace
        self._took = self._expected = TRUSTED_SECONDS if pace.measured else 0.0
        self.restart(images, now)

    def restart(self, images: int, now: float) -> None:
        """Continue from `images`: what the run did since the last observation is not counted."""
        self._images, self._time = images, now

    def observe(self, images: int, now: float) -> None:
        """Take in that `images` have been shown at `now`."""
        took, expected = now - self._time, self.pace.seconds(self.schedule, self._images, images)
        kept = 0.5 ** (took / HALF_LIFE_SECONDS)
        self._took, self._expected = self._took * kept + took, self._expected * kept + expected
        self.restart(images, now)

    @property
    def correction(self) -> float:
        """How many times as long as expected the run takes."""
        return self._took / self._expected if self._expected > 0 else 1.0

    def seconds_left(self, images: int) -> float:
        """Seconds from `images` to the end of the schedule."""
        return self.correction * self.pace.seconds(self.schedule, images, self.schedule.total)

    def seconds_left_of_phase(self, images: int) -> float:
        """Seconds from `images` to the end of the phase in force there."""
        end = min(self.schedule.at(images).end, self.schedule.total)
        return self.correction * self.pace.seconds(self.schedule, images, end)

    def images_after(self, seconds: float, images: int) -> int:
        """How many images will have been shown `seconds` after `images`; the last phase is prolonged if need be."""
        expected = max(seconds, 0.0) / self.correction
        for phase, each in zip(self.schedule.phases[:-1], self.pace.seconds_per_image, strict=False):
            left = max(phase.end - images, 0)
            if left * each > expected:
                return images + int(expected / each)
            expected, images = expected - left * each, images + left
        return images + int(expected / self.pace.seconds_per_image[-1])


def expected_end(eta: Eta, images: int, now: datetime) -> str:
    """How long the run is expected to take from `images` on, and until when."""
    seconds = eta.seconds_left(images)
    end = now + timedelta(seconds=min(seconds, 3e9))  # a century
    until = f"{end:%H:%M}" if end.date() == now.date() else f"{end:%H:%M on %d %B}"
    until += f" {end.year}" if end.year != now.year else ""
    how = "measured" if eta.pace.measured else "a first guess from the rate of a matrix product"
    return f"about {duration(seconds)}, until {until} ({how})"


def too_long(eta: Eta, images: int, command: str) -> list[str]:
    """What to say of a run that takes longer than a day, which was started by `command`."""
    seconds = eta.seconds_left(images)
    if seconds <= LONG_SECONDS:
        return []
    words = [word for word in shlex.split(command) if not word.startswith("run_dir=")]
    shorter = shlex.join([*words, f"hours={WORKING_HOURS}"])
    return [
        f"This run takes about {duration(seconds)} here. A recipe that ends in {WORKING_HOURS} hours, with the keys "
        f"that you gave: {shorter}"
    ]
