"""How long a run still takes: what its updates are expected to take, corrected by what they have taken."""

import os
import shlex
from datetime import datetime, timedelta
from pathlib import Path

from pggan.config import TrainConfig
from pggan.config.train import RESUME_KEYS
from pggan.core.environment import PARENT_VARIABLE
from pggan.core.formatting import duration
from pggan.core.next_command import key_of
from pggan.core.schedule import Schedule
from pggan.data.pyramid import INDEX_FILE
from pggan.training.timing import PhaseTimes

# Of what a run has taken, the last part counts most: the level in training says most about those to come, and other
# work on the machine comes and goes.  What was half of the run ago counts half, but never less than a minute: ticks of
# seconds differ much.
HALF_LIFE_SECONDS = 60.0
HALF_LIFE_SHARE = 0.5
# A measured time counts as much as so many seconds of training.  With more, a machine that is five times slower than
# it was while it was measured is not believed within a minute.
TRUSTED_SECONDS = 3.0
LONG_SECONDS = 86_400.0  # a day: what takes longer is said before it starts, and how it could be shorter
WORKING_HOURS = 8  # which is proposed instead
NOT_BESIDE_HOURS = ("run_dir", "resume", "hours", "schedule.total_images")  # keys of a command


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
        half_life = max(HALF_LIFE_SECONDS, HALF_LIFE_SHARE * (now - self._began))
        kept = 0.5 ** (took / half_life)
        self._took, self._expected = self._took * kept + took, self._expected * kept + expected
        self.restart(images, now)

    @property
    def correction(self) -> float:
        """The time that the run takes, divided by that which its steps are expected to take."""
        ratio = self._took / self._expected if self._expected > 0 else 1.0
        return ratio / (1 - self.evaluation_share)

    def seconds_left(self, images: int) -> float:
        """Seconds from `images` to the end of the schedule."""
        return self.correction * self.phase_times.seconds(self.schedule, images, self.schedule.total)

    def images_after(self, seconds: float, images: int) -> int:
        """The image count that is reached `seconds` after `images`; the last phase is prolonged if need be."""
        expected = max(seconds, 0.0) / self.correction
        for phase, each in zip(self.schedule.phases, self.phase_times.seconds_per_image, strict=True):
            left = max(phase.end - images, 0)
            if left * each > expected or phase is self.schedule.phases[-1]:
                break
            expected, images = expected - left * each, images + left
        return images + int(max(expected, 0.0) / each)


def expected_end(eta: Eta, images: int, now: datetime) -> str:
    """The time that the run is expected to take from `images` on, and its end, as text."""
    if images >= eta.schedule.total:
        return "none: all images have been shown"
    how = "measured" if eta.phase_times.measured else "a first guess, by operations"
    return f"{until(eta.seconds_left(images), now)} ({how})"


def until(seconds: float, now: datetime) -> str:
    """So many seconds from `now`, and the time of day at which they end."""
    end = now + timedelta(seconds=min(seconds, 3e9))  # a century
    clock = f"{end:%H:%M}" if end.date() == now.date() else f"{end:%H:%M on %d %B}"
    return f"about {duration(seconds)}, until {clock}" + (f" {end.year}" if end.year != now.year else "")


def too_long(eta: Eta, config: TrainConfig, command: str | None) -> list[str]:
    """One note on a new run of `config` that takes longer than a day, which `command` started; else none."""
    seconds = eta.seconds_left(0)
    if seconds <= LONG_SECONDS:
        return []
    if ranks_start_elsewhere(config):
        shorter = f"{fewer_images(eta)} Or choose a recipe on one machine (hours={WORKING_HOURS}), and give all ranks "
        shorter += "experiment= with the recipe.yaml of that run."
    elif command is None or resumes(command) or not suits_a_choice(config):
        shorter = fewer_images(eta)
    else:
        shorter = f"A recipe that ends in {WORKING_HOURS} hours, with the keys that you gave: {with_hours(command)}"
    return [f"This run takes about {duration(seconds)} here. {shorter}"]


def ranks_start_elsewhere(config: TrainConfig) -> bool:
    """Whether a launcher or several machines start the ranks, so that hours= can't choose before they start."""
    return config.distributed.nnodes > 1 or ("RANK" in os.environ and PARENT_VARIABLE not in os.environ)


def resumes(command: str) -> bool:
    """Whether `command` takes the configuration of a run, which has no checkpoint yet, from its directory."""
    keys = {word.partition("=")[0] for word in shlex.split(command) if "=" in word}
    return "run_dir" in keys and keys <= RESUME_KEYS


def suits_a_choice(config: TrainConfig) -> bool:
    """Whether hours= may choose networks for `config`: weights do not fit all, and it has to know the classes."""
    data = config.data
    knows_classes = not data.labels or data.path is None or Path(data.path, INDEX_FILE).is_file()
    return knows_classes and config.init_from is None


def fewer_images(eta: Eta) -> str:
    """A sentence on how many images the new run of `eta` shows in WORKING_HOURS."""
    images, final = eta.images_after(3600 * WORKING_HOURS, 0), eta.schedule.phases[-1]
    images = max(images - images % 10 ** max(len(str(images)) - 2, 0), 1)
    early = f", before {final.resolution}x{final.resolution} is faded in" if images < final.start else ""
    return f"schedule.total_images={images} ends it in {WORKING_HOURS} hours{early}."


def with_hours(command: str) -> str:
    """`command` with WORKING_HOURS instead of the keys that say where a run is and when it ends."""
    words = {word: key_of(word) for word in shlex.split(command)}
    kept = [word for word, key in words.items() if key not in NOT_BESIDE_HOURS]
    if "schedule" in words.values():  # its file may have an end, too
        kept.append("schedule.total_images=null")
    return shlex.join([*kept, f"hours={WORKING_HOURS}"])
