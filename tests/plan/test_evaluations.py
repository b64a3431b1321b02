"""The time of evaluations, by hand: 32 images at 4x4, which has no SWD, 20 of a fade to 8x8 and 32 at 8x8."""

import pytest

from pggan.performance.plan.calibration import MEASURED, Timing
from pggan.performance.plan.evaluations import evaluation_seconds, evaluation_share


@pytest.mark.parametrize(
    ("words", "seconds", "share"),
    [
        # Multiples of 10 above 32 up to 84 are 40 and 50 of the fade, and three more; 8 images of 0.5 s each.
        (["evaluation.interval_images=10", "evaluation.count=8"], 5 * 8 * 0.5, "every 10 images"),
        # 52 evaluations of 512 images would take longer than the share: 1/19 of 84 images and 4 more of the fade.
        ([], 11 * 8 * 0.5 * 0.05 / 0.95, "at most 5%"),
        (["evaluation.max_share=0.5", "evaluation.count=2"], 11 * 8 * 0.5, "at most 50%"),
        (["evaluation.metrics=[]"], 0, "none"),
        (["evaluation.metrics=[ms_ssim]", "evaluation.interval_images=84"], 512 * 0.5, "every 84 images"),
    ],
)
def test_evaluations_are_counted_by_their_interval_or_up_to_their_share(make_config, costs, words, seconds, share):
    config = make_config(*words)
    timings = [Timing(0.5 * cost.phase.batch, 0.0, 0.0, MEASURED) for cost in costs]
    assert sum(cost.steps for cost in costs) == 11
    assert evaluation_seconds(config, costs, timings) == pytest.approx(seconds)
    assert share in evaluation_share(config)
