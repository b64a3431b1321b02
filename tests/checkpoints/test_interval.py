"""When checkpoints are begun, and when training waits for them."""

import math
import random

import pytest

from pggan.checkpoints.write import CheckpointInterval


class Clock:
    """Stands in for the module `time`."""

    now = 1000.0

    @classmethod
    def monotonic(cls) -> float:
        return cls.now


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(Clock, "now", 1000.0)
    monkeypatch.setattr("pggan.checkpoints.write.time", Clock)


class Training:
    """Steps and writes of any duration; what a kill loses at its worst is looked at at the end of every step."""

    def __init__(self, images: int, minutes: float | None = None) -> None:
        self.interval = CheckpointInterval(0, images, minutes)
        self.images = 0
        self.writing: tuple[float, int, float] | None = None  # when it ends, and the images and time that it holds
        self.on_disk = (0, Clock.now)
        self.most_images, self.most_seconds, self.waits, self.saves = 0, 0.0, 0, 0

    def look(self) -> None:
        if self.writing is not None and Clock.now >= self.writing[0]:
            self.on_disk, self.writing = self.writing[1:], None

    def step(self, batch: int, step_seconds: float, save_seconds: float) -> None:
        """One turn of the loop: a flag seen a step later, the wait, the step, a checkpoint."""
        self.look()
        if self.writing is None:
            self.interval.saved()
        late = self.interval.is_late
        if self.interval.must_wait(self.images + batch) and self.writing is not None:
            self.waits += 1
            Clock.now = self.writing[0]
            self.look()
            self.interval.saved()
        before, self.images = self.images, self.images + batch
        Clock.now += step_seconds
        self.look()
        self.most_images = max(self.most_images, self.images - self.on_disk[0])
        self.most_seconds = max(self.most_seconds, Clock.now - self.on_disk[1])
        if self.interval.is_due(before, self.images) or late:
            if self.writing is not None:
                self.waits += 1
                Clock.now = self.writing[0]
                self.look()
                self.interval.saved()
            self.interval.begin(self.images)
            self.writing = (Clock.now + save_seconds, self.images, Clock.now)
            self.saves += 1


@pytest.mark.parametrize("save_seconds", [0.0, 3.0, 100.0])
@pytest.mark.parametrize("every", [8, 20, 1000])
def test_no_kill_loses_more_images_than_the_interval(every, save_seconds):
    dice = random.Random(every)
    training = Training(every)
    for _ in range(300):
        training.step(dice.choice([batch for batch in (4, 8, 60, 300) if batch <= every]), 1.0, save_seconds)
        assert training.most_images <= every


@pytest.mark.parametrize("save_seconds", [0.0, 5.0, 100.0])
def test_no_kill_loses_more_minutes_than_the_interval(save_seconds):
    """Steps of 1.5 seconds and two minutes."""
    training = Training(10**9, 2.0)
    for _ in range(600):
        training.step(8, 1.5, save_seconds)
    assert 60 < training.most_seconds <= 120


def test_without_minutes_only_images_count():
    training = Training(100)
    Clock.now = math.inf
    assert not training.interval.is_late
