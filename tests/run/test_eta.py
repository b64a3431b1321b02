"""Time left: true from the start where the pace was measured, and soon where it was not."""

from datetime import datetime

import pytest

from pggan.core.schedule import Schedule
from pggan.run.eta import HALF_LIFE_SECONDS, TRUSTED_SECONDS, Eta, expected_end, too_long
from pggan.training.timing import Pace

TABLES = {key: {4: 16} for key in ("batch", "learning_rate_g", "learning_rate_d")}
STABLE, FADES = {4: 1500, 8: 2500, 16: 5000, 32: 40_000}, {8: 1500, 16: 3000, 32: 5000}
DEMO = Schedule(first_resolution=4, final_resolution=32, stable_images=STABLE, fade_images=FADES, **TABLES)
SECONDS = {4: 0.0010, 8: 0.0031, 16: 0.0056, 32: 0.0050}  # of an image of the demo on two cores (lab book)


def pace(seconds, *, measured=True):
    return Pace(tuple(seconds[phase.resolution] for phase in DEMO.phases), measured=measured)


def run(eta, true_seconds, tick=500):
    """(elapsed, predicted total) at every tick of a run whose images take `true_seconds` by resolution."""
    now, found = 0.0, []
    for images in range(tick, DEMO.total, tick):
        now += tick * true_seconds[DEMO.at(images - 1).resolution]
        eta.observe(images, now)
        found.append((now, now + eta.seconds_left(images)))
    return found


def total(true_seconds):
    return pace(true_seconds).seconds(DEMO, 0, DEMO.total)


def worst(found, actual, after):
    return max(abs(predicted / actual - 1) for elapsed, predicted in found if elapsed >= after)


def test_a_measured_pace_is_true_at_the_first_tick():
    found = run(Eta(DEMO, pace(SECONDS), 0, 0.0), SECONDS)
    assert [predicted for _, predicted in found] == pytest.approx([total(SECONDS)] * len(found))


def test_a_machine_that_is_slower_than_measured_is_believed_within_minutes():
    slower = {side: 1.6 * each for side, each in SECONDS.items()}
    found = run(Eta(DEMO, pace(SECONDS), 0, 0.0), slower)
    assert worst(found, total(slower), 60) < 0.1


@pytest.mark.parametrize("off", [{4: 3.0}, {8: 0.5}, {32: 0.75}, {32: 1.25}, {4: 2.0, 8: 1.5, 16: 0.7}])
def test_wrong_measurements_of_single_levels_are_outweighed(off):
    """The promise for a run on a CPU: within 25 % after one minute."""
    measured = {side: each * off.get(side, 1.0) for side, each in SECONDS.items()}
    found = run(Eta(DEMO, pace(measured), 0, 0.0), SECONDS)
    assert worst(found, total(SECONDS), 60) < 0.25
    assert worst(found, total(SECONDS), 180) < 0.1


def test_without_a_measurement_the_first_tick_sets_the_scale():
    relative = {side: 1000 * each for side, each in SECONDS.items()}
    found = run(Eta(DEMO, pace(relative, measured=False), 0, 0.0), SECONDS)
    assert found[0][1] == pytest.approx(total(SECONDS))
    assert Eta(DEMO, pace(relative, measured=False), 0, 0.0).correction == 1.0


def test_what_was_long_ago_counts_little():
    """After a half-life the first minutes, and the trust in the measurement, weigh half as much as what came since."""
    eta = Eta(DEMO, pace(dict.fromkeys(SECONDS, 1.0)), 0, 0.0)
    eta.observe(10, 10.0)
    eta.observe(10 + 30, 10.0 + HALF_LIFE_SECONDS)  # 30 images took 60 s
    kept = 0.5 * (TRUSTED_SECONDS * 0.5 ** (10 / HALF_LIFE_SECONDS) + 10)
    assert eta.correction == pytest.approx((kept + 60) / (kept + 30))


def test_a_rollback_and_a_resume_count_what_is_trained_from_there():
    eta = Eta(DEMO, pace(dict.fromkeys(SECONDS, 0.5)), 2000, 100.0)
    eta.restart(1000, 400.0)
    eta.observe(1010, 405.0)
    assert eta.correction == pytest.approx(1.0)
    assert eta.seconds_left(1010) == pytest.approx(0.5 * (DEMO.total - 1010))


def test_the_time_left_of_a_phase_ends_with_it_or_with_the_run():
    eta = Eta(DEMO, pace(SECONDS), 0, 0.0)
    assert eta.seconds_left_of_phase(1400) == pytest.approx(100 * SECONDS[4])
    assert eta.seconds_left_of_phase(DEMO.total - 10) == pytest.approx(10 * SECONDS[32]) == eta.seconds_left(58_490)


@pytest.mark.parametrize("images", [0, 1499, 1500, 9000, 58_000])
def test_images_after_a_time_are_the_inverse_of_the_time_left(images):
    eta = Eta(DEMO, pace(SECONDS), 0, 0.0)
    eta.observe(100, 0.3)  # three times as slow as expected
    for later in (images, images + 1, 3000, DEMO.total):
        if later >= images:
            seconds = eta.correction * eta.pace.seconds(DEMO, images, later)
            assert eta.images_after(seconds + 1e-9, images) == later
    ever = eta.seconds_left(images) + 1000 * eta.correction * SECONDS[32]
    assert eta.images_after(ever + 1e-9, images) == DEMO.total + 1000  # the last phase is prolonged
    assert eta.images_after(-5.0, images) == images


NOON = datetime(2026, 3, 1, 12, 0)


def test_the_end_is_said_as_a_time_of_day():
    eta = Eta(DEMO, pace(SECONDS), 0, 0.0)
    assert expected_end(eta, 0, NOON) == "about 4.73 min, until 12:04 (measured)"
    slow = {side: 3600 * each for side, each in SECONDS.items()}
    long = expected_end(Eta(DEMO, pace(slow, measured=False), 0, 0.0), 0, NOON)
    assert long.startswith("about 11.8 d, until 07:42 on 13 March (a first guess")
    endless = {side: 1e9 for side in SECONDS}
    assert "21" in expected_end(Eta(DEMO, pace(endless), 0, 0.0), 0, NOON)


def test_a_run_of_more_than_a_day_is_told_how_it_could_end_in_hours():
    slow = {side: 3600 * each for side, each in SECONDS.items()}
    command = "pggan train 'data.path=my photos' run_dir=outputs/x"
    assert too_long(Eta(DEMO, pace(SECONDS), 0, 0.0), 0, command) == []
    (said,) = too_long(Eta(DEMO, pace(slow), 0, 0.0), 0, command)
    assert "about 11.8 d here" in said
    assert said.endswith("pggan train 'data.path=my photos' hours=8")
