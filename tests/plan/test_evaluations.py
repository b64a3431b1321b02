"""The time of evaluations, by hand: 32 images at 4x4, which has no SWD, 20 of a fade to 8x8 and 32 at 8x8."""

import pytest

from pggan.performance.plan.calibration import MEASURED, PREDICTED, Timing
from pggan.performance.plan.evaluations import evaluation_seconds, evaluation_share
from pggan.run.evaluation_cost import DRAWING_SHARE, MS_SSIM_SECONDS, SWD_SECONDS

EACH = 0.5 * DRAWING_SHARE  # seconds in which an image is drawn, where training shows one in half a second


@pytest.mark.parametrize(
    ("words", "seconds", "share"),
    [
        # Multiples of 10 above 32 up to 84 are 40 and 50 of the fade, and three more, and then there is the end; the
        # first one has a floor, too.
        (
            ["evaluation.interval_images=10", "evaluation.count=16"],
            6 * 16 * (EACH + SWD_SECONDS) + 16 * SWD_SECONDS,
            "10",
        ),
        (["evaluation.interval_images=1000", "evaluation.count=16"], 16 * (EACH + 2 * SWD_SECONDS), "1,000"),
        # 52 evaluations of 512 images would take longer than the share: 1/19 of 84 images and 4 more of the fade.
        ([], 11 * 8 * 0.5 * 0.05 / 0.95, "at most 5%"),
        (["evaluation.max_share=0.5", "evaluation.count=2"], 2 * (52 * EACH + 53 * SWD_SECONDS), "at most 50%"),
        (["evaluation.metrics=[]"], 0, "none"),
        (
            ["evaluation.metrics=[ms_ssim]", "evaluation.interval_images=84"],
            512 * (EACH + 2 * 8**2 * MS_SSIM_SECONDS),
            "84 images, about 59% of",
        ),
        (["evaluation.interval_images=84", "data.count=20"], 20 * (EACH + 2 * SWD_SECONDS), "about 6% of the time"),
    ],
)
def test_evaluations_are_counted_by_their_interval_or_up_to_their_share(make_config, costs, words, seconds, share):
    config = make_config(*words)
    timings = [Timing(0.5 * cost.phase.batch, 0.0, 0.0, MEASURED) for cost in costs]
    assert sum(cost.steps for cost in costs) == 11
    assert evaluation_seconds(config, costs, timings) == pytest.approx(seconds)
    assert share in evaluation_share(config, costs, timings)


def test_features_are_timed_where_the_run_is_and_left_out_for_a_card_elsewhere(make_config, costs, monkeypatch):
    monkeypatch.setattr("pggan.performance.plan.evaluations.time_features", lambda *_: 0.25)
    words = ["evaluation.metrics=[kid]", "evaluation.extractor=pixels", "evaluation.interval_images=84"]
    config = make_config(*words, "evaluation.count=8")
    timings = [Timing(0.5 * cost.phase.batch, 0.0, 0.0, MEASURED) for cost in costs]
    assert evaluation_seconds(config, costs, timings) == pytest.approx(8 * (EACH + 2 * 0.25))
    there = [timing._replace(source=PREDICTED) for timing in timings]
    config = make_config(*words, "evaluation.count=8", "devices=7")  # which this machine has not
    assert evaluation_seconds(config, costs, there) == pytest.approx(8 * EACH)
    assert "and more for features" in evaluation_share(config, costs, there)
