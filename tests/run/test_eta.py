"""Time left: true from the start where phases were measured, and soon where it was not; and ending in given hours."""

import json

import pytest

from pggan.core.schedule import Course, Schedule
from pggan.run.eta import TRAINING_SHARE, Eta, TimeLimit, plan_of, with_plan
from pggan.training.timing import PhaseTimes

TABLES = {key: {4: 16} for key in ("batch", "learning_rate_g", "learning_rate_d")}
STABLE, FADES = {4: 1500, 8: 2500, 16: 5000, 32: 40_000}, {8: 1500, 16: 3000, 32: 5000}
DEMO = Schedule(first_resolution=4, final_resolution=32, stable_images=STABLE, fade_images=FADES, **TABLES)
SECONDS = {4: 0.0010, 8: 0.0031, 16: 0.0056, 32: 0.0050}  # of an image of the demo on two cores (lab book)


def phase_times(seconds, *, measured=True):
    each = tuple(seconds[phase.resolution] for phase in DEMO.phases)
    return PhaseTimes(each, measured=frozenset(SECONDS if measured else ()))


def eta_of(seconds, *, measured=True):
    return Eta(Course(DEMO), phase_times(seconds, measured=measured), 0, 0.0)


def run(eta, true_seconds, tick=500):
    """(elapsed, predicted total) at every tick of a run whose images take `true_seconds` by resolution."""
    now, found = 0.0, []
    for images in range(tick, DEMO.total, tick):
        now += tick * true_seconds[DEMO.at(images - 1).resolution]
        eta.observe(images, now)
        found.append((now, now + eta.seconds_between(images, DEMO.total)))
    return found


def total(true_seconds):
    return phase_times(true_seconds).seconds(DEMO, 0, DEMO.total)


def worst(found, actual, after):
    return max(abs(predicted / actual - 1) for elapsed, predicted in found if elapsed >= after)


def test_a_measured_pace_is_true_at_the_first_tick():
    found = run(eta_of(SECONDS), SECONDS)
    assert [predicted for _, predicted in found] == pytest.approx([total(SECONDS)] * len(found))


@pytest.mark.parametrize("off", [dict.fromkeys(SECONDS, 0.6), {4: 3.0}, {4: 2.0, 8: 1.5, 16: 0.7}])
def test_wrong_measurements_are_outweighed(off):
    """The promise for a run on a CPU: within 25 % after one minute, be the machine slower or single levels wrong."""
    found = run(eta_of({side: each * off.get(side, 1.0) for side, each in SECONDS.items()}), SECONDS)
    assert worst(found, total(SECONDS), 60) < 0.25
    assert worst(found, total(SECONDS), 180) < 0.1


def test_without_a_measurement_the_first_tick_sets_the_scale():
    relative = {side: 1000 * each for side, each in SECONDS.items()}
    assert run(eta_of(relative, measured=False), SECONDS)[0][1] == pytest.approx(total(SECONDS))


def test_an_early_evaluation_does_not_slow_down_the_estimate():
    """The first evaluation comes after a second of training, takes three, and the next ones may take 5 %."""
    eta = Eta(Course(DEMO), phase_times(SECONDS), 0, 0.0, 0.05)
    images = round(1 / SECONDS[4])
    eta.observe(images, 1.0)
    eta.evaluated(3.0)
    assert eta.seconds_between(images, DEMO.total) == pytest.approx((total(SECONDS) - 1) / 0.95, rel=0.01)


# ---- hours= -----------------------------------------------------------------------------------------------

# As configured, growth takes 180 of 500 s.
SCHEDULE = Schedule(
    first_resolution=4,
    final_resolution=8,
    stable_images={4: 2000, 8: 8000},
    fade_images={8: 4000},
    lr_decay_images=1500,
    **TABLES,
)
PHASE_TIMES = PhaseTimes((0.01, 0.04, 0.04), measured=frozenset({4}))


def train(times, *, spent=0.0, images=0, plan=None, stop=10**9):
    """(images, seconds, limit, phases) of a run that takes so many `times` what was expected; a tick in ten steps.

    Args: times: a number, or a function of the seconds since the beginning; plan: of the run that is resumed.
    """
    course, now, phases = Course(with_plan(SCHEDULE, plan or {})), 0.0, {}
    eta = Eta(course, PHASE_TIMES, images, now)
    limit = TimeLimit(500 / 3600, eta, now - spent, SCHEDULE)
    while images < course.schedule.total and images < stop:
        phases[images] = phase = course.at(images)
        slower = times(now) if callable(times) else times
        images, now = images + phase.batch, now + phase.batch * slower * PHASE_TIMES.seconds_per_image[phase.index]
        if images % 160 == 0 and images < course.schedule.total:
            limit.plan(images, now, reserve=40.0)  # for the last evaluation
    return images, now, limit, [*phases.values()]


@pytest.mark.parametrize("times", [0.2, 1.0, 1.5, 8.0, lambda now: 1.0 if now < 250 else 4.0])
def test_the_end_comes_within_a_tenth_of_the_hours_and_the_rates_fall_towards_0(times):
    _, seconds, limit, phases = train(times)
    assert seconds == pytest.approx(TRAINING_SHARE * 500 - 40, rel=0.07)
    end, rate = limit.eta.course.schedule, TABLES["learning_rate_g"][4]
    assert phases[-1].learning_rate_g < 0.17 * rate
    assert end.decay_images == pytest.approx(1500 / 8000 * (end.total - end.phases[-1].start), abs=1)
    assert all(phase.learning_rate_g == rate for phase in phases if phase.index < 2)  # none falls while networks grow


@pytest.mark.parametrize("times", [1.0, 8.0])
def test_growth_leaves_the_final_resolution_half_of_its_time_on_a_slower_machine(times):
    _, _, limit, _ = train(times)
    end = limit.eta.course.schedule
    assert PHASE_TIMES.seconds(end, 0, end.phases[-1].start) * times <= 1.1 * (180 + 320 / 2)
    assert (end.growth_images == SCHEDULE.growth_images) == (times < 1.5)


def test_a_fade_in_which_the_machine_becomes_slower_comes_to_its_end():
    *_, phases = train(lambda now: 1.0 if now < 60 else 10.0)
    assert sum(phase.index == 2 for phase in phases) >= 5
    alphas = [phase.alpha for phase in phases if phase.fading]
    assert alphas == sorted(alphas)


def test_a_resumed_run_has_the_time_and_the_plan_that_are_left():
    images, seconds, limit, _ = train(2.0, stop=4000)
    plan = json.loads(json.dumps(plan_of(limit.eta.course.schedule)))
    found, wanted = with_plan(SCHEDULE, plan), limit.eta.course.schedule
    assert (found.phases, found.decay_images) == (wanted.phases, wanted.decay_images)
    _, rest, _, _ = train(2.0, spent=seconds, images=images, plan=plan)
    assert seconds + rest == pytest.approx(TRAINING_SHARE * 500 - 40, rel=0.07)
    images, *_ = train(1.0, spent=1000.0, images=1584)  # no time is left: one tick
    assert images <= 1616
