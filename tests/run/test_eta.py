"""Time left: true from the start where phases were measured, and soon where it was not."""

from dataclasses import replace
from datetime import datetime

import pytest

from pggan.core.schedule import Schedule
from pggan.run.eta import Eta, expected_end, too_long
from pggan.training.timing import PhaseTimes

TABLES = {key: {4: 16} for key in ("batch", "learning_rate_g", "learning_rate_d")}
STABLE, FADES = {4: 1500, 8: 2500, 16: 5000, 32: 40_000}, {8: 1500, 16: 3000, 32: 5000}
DEMO = Schedule(first_resolution=4, final_resolution=32, stable_images=STABLE, fade_images=FADES, **TABLES)
SECONDS = {4: 0.0010, 8: 0.0031, 16: 0.0056, 32: 0.0050}  # of an image of the demo on two cores (lab book)


def phase_times(seconds, *, measured=True):
    return PhaseTimes(
        tuple(seconds[phase.resolution] for phase in DEMO.phases), measured=frozenset(SECONDS if measured else ())
    )


def run(eta, true_seconds, tick=500):
    """(elapsed, predicted total) at every tick of a run whose images take `true_seconds` by resolution."""
    now, found = 0.0, []
    for images in range(tick, DEMO.total, tick):
        now += tick * true_seconds[DEMO.at(images - 1).resolution]
        eta.observe(images, now)
        found.append((now, now + eta.seconds_left(images)))
    return found


def total(true_seconds):
    return phase_times(true_seconds).seconds(DEMO, 0, DEMO.total)


def worst(found, actual, after):
    return max(abs(predicted / actual - 1) for elapsed, predicted in found if elapsed >= after)


def test_a_measured_pace_is_true_at_the_first_tick():
    found = run(Eta(DEMO, phase_times(SECONDS), 0, 0.0), SECONDS)
    assert [predicted for _, predicted in found] == pytest.approx([total(SECONDS)] * len(found))


def test_a_machine_that_is_slower_than_measured_is_believed_within_minutes():
    slower = {side: 1.6 * each for side, each in SECONDS.items()}
    found = run(Eta(DEMO, phase_times(SECONDS), 0, 0.0), slower)
    assert worst(found, total(slower), 60) < 0.1


@pytest.mark.parametrize("off", [{4: 3.0}, {8: 0.5}, {32: 0.75}, {32: 1.25}, {4: 2.0, 8: 1.5, 16: 0.7}])
def test_wrong_measurements_of_single_levels_are_outweighed(off):
    """The promise for a run on a CPU: within 25 % after one minute."""
    measured = {side: each * off.get(side, 1.0) for side, each in SECONDS.items()}
    found = run(Eta(DEMO, phase_times(measured), 0, 0.0), SECONDS)
    assert worst(found, total(SECONDS), 60) < 0.25
    assert worst(found, total(SECONDS), 180) < 0.1


def test_without_a_measurement_the_first_tick_sets_the_scale():
    relative = {side: 1000 * each for side, each in SECONDS.items()}
    found = run(Eta(DEMO, phase_times(relative, measured=False), 0, 0.0), SECONDS)
    assert found[0][1] == pytest.approx(total(SECONDS))
    assert Eta(DEMO, phase_times(relative, measured=False), 0, 0.0).correction == 1.0


# (images, seconds) of three runs of the demo: on two quiet cores, and twice beside work that came and went.
RECORDED = {
    "quiet": [
        *((1008, 0.9), (2000, 2.2), (3008, 4.0), (4000, 5.6), (5008, 7.2), (6000, 9.4), (7008, 12.3), (8000, 15.1)),
        *((9008, 18.3), (13008, 29.4), (17008, 45.1), (21008, 61.0), (25008, 76.9), (29008, 96.1), (33008, 111.4)),
        *((37008, 130.4), (41008, 147.7), (45008, 165.5), (49008, 183.5), (53008, 201.4), (58512, 232.4)),
    ],
    "busy": [
        *((1008, 1.7), (2000, 4.3), (3008, 7.6), (4000, 10.8), (5008, 15.4), (6000, 25.3), (7008, 37.8), (8000, 49.8)),
        *((9008, 64.8), (13008, 121.5), (17008, 169.3), (21008, 238.4), (25008, 318.2), (29008, 362.8), (33008, 414.9)),
        *((37008, 474.8), (41008, 518.2), (45008, 569.0), (49008, 611.7), (53008, 689.2), (58512, 845.5)),
    ],
    "busier": [
        *(
            (1008, 6.3),
            (2000, 16.0),
            (3008, 28.0),
            (4000, 44.6),
            (5008, 54.5),
            (6000, 66.2),
            (7008, 74.2),
            (8000, 88.2),
        ),
        *(
            (9008, 102.3),
            (13008, 178.9),
            (17008, 270.3),
            (21008, 423.5),
            (25008, 556.8),
            (29008, 665.1),
            (33008, 760.5),
        ),
        *((37008, 876.7), (41008, 1007.5), (45008, 1157.6), (49008, 1319.2), (53008, 1430.9), (58512, 1640.3)),
    ],
}
QUIET = {4: 0.0009, 8: 0.0016, 16: 0.0027, 32: 0.0041}  # seconds of an image on the quiet cores


@pytest.mark.parametrize(
    ("load", "times", "one", "three"),
    [
        ("quiet", 1.0, 0.1, 0.05),
        ("quiet", 1 / 3, 0.25, 0.1),
        ("quiet", 3.0, 0.25, 0.1),
        ("busy", 1.0, 0.25, 0.2),  # four times as slow as measured
        ("busy", 3.0, 0.25, 0.2),
        ("busier", 1.0, 0.35, 0.25),  # eight times, and more so later
    ],
)
def test_recorded_runs_are_predicted(load, times, one, three):
    """Of the whole run, after one minute and after three; `times`: measured updates over those of quiet cores."""
    eta, end = (
        Eta(DEMO, phase_times({side: times * each for side, each in QUIET.items()}), 0, 0.0),
        RECORDED[load][-1][1],
    )
    found = []
    for images, now in RECORDED[load]:
        eta.observe(images, now)
        found.append((now, now + eta.seconds_left(images)))
    assert worst(found, end, 60) < one
    assert worst(found, end, 180) < three


def test_evaluations_with_a_share_of_the_time_are_planned_and_not_taken_for_slow_steps():
    seconds, share = phase_times(SECONDS).seconds(DEMO, 0, DEMO.total), 0.05
    eta = Eta(DEMO, phase_times(SECONDS), 0, 0.0, evaluation_share=share)
    assert eta.seconds_left(0) == pytest.approx(seconds / (1 - share))
    assert eta.images_after(seconds / (1 - share) + 1e-9, 0) == DEMO.total
    eta.evaluated(7.0)
    eta.observe(1000, 7.0 + 1000 * SECONDS[4])
    assert eta.seconds_left(1000) == pytest.approx((seconds - 1000 * SECONDS[4]) / (1 - share))
    given_images = Eta(DEMO, phase_times(SECONDS), 0, 0.0)  # how many there will be is not known
    given_images.evaluated(7.0)
    given_images.observe(1000, 7.0 + 1000 * SECONDS[4])
    assert given_images.seconds_left(1000) > 2 * seconds


def test_a_rollback_and_a_resume_count_what_is_trained_from_there():
    eta = Eta(DEMO, phase_times(dict.fromkeys(SECONDS, 0.5)), 2000, 100.0)
    eta.restart(1000, 400.0)
    eta.observe(1010, 405.0)
    assert eta.correction == pytest.approx(1.0)
    assert eta.seconds_left(1010) == pytest.approx(0.5 * (DEMO.total - 1010))


@pytest.mark.parametrize("images", [0, 1499, 1500, 9000, 58_000])
def test_images_after_a_time_are_the_inverse_of_the_time_left(images):
    eta = Eta(DEMO, phase_times(SECONDS), 0, 0.0)
    eta.observe(100, 0.3)  # three times as slow as expected
    for later in (images, images + 1, 3000, DEMO.total):
        if later >= images:
            seconds = eta.correction * eta.phase_times.seconds(DEMO, images, later)
            assert eta.images_after(seconds + 1e-9, images) == later
    ever = eta.seconds_left(images) + 1000 * eta.correction * SECONDS[32]
    assert eta.images_after(ever + 1e-9, images) == DEMO.total + 1000  # the last phase is prolonged
    assert eta.images_after(-5.0, images) == images


NOON = datetime(2026, 3, 1, 12, 0)


def test_the_end_is_said_as_a_time_of_day():
    eta = Eta(DEMO, phase_times(SECONDS), 0, 0.0)
    assert expected_end(eta, 0, NOON) == "about 4.73 min, until 12:04 (measured)"
    slow = {side: 3600 * each for side, each in SECONDS.items()}
    long = expected_end(Eta(DEMO, phase_times(slow, measured=False), 0, 0.0), 0, NOON)
    assert long == "about 11.8 d, until 07:42 on 13 March 2026 (a first guess, by operations)"
    assert expected_end(Eta(DEMO, phase_times(SECONDS), 0, 0.0), DEMO.total, NOON) == "none: all images have been shown"
    endless = {side: 1e9 for side in SECONDS}
    ages = expected_end(Eta(DEMO, phase_times(endless), 0, 0.0), 0, NOON)
    assert ages == "about 677,083,333 d, until 17:20 on 25 March 2121 (measured)"  # as far as a calendar goes


# ---- runs of more than a day -------------------------------------------------------------------------------


SLOW = phase_times({side: 3600 * each for side, each in SECONDS.items()})


def test_a_run_of_more_than_a_day_is_told_how_it_could_end_in_hours():
    (said,) = too_long(Eta(DEMO, SLOW, 0, 0.0))
    assert "about 11.8 d here. hours=8 " in said
    (proposed,) = (word for word in said.split() if word.startswith("schedule.total_images="))
    shorter = replace(DEMO, total_images=int(proposed.partition("=")[2]))
    assert 7.2 < Eta(shorter, SLOW, 0, 0.0).seconds_left(0) / 3600 <= 8
    assert too_long(Eta(DEMO, phase_times(SECONDS), 0, 0.0)) == []
