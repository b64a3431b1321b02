"""What evaluations are expected to cost, and when they fit into their share of the time."""

import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from pggan.config.evaluation import EvaluationConfig
from pggan.metrics.extractor import Extractor
from pggan.run.evaluation_cost import (
    MS_SSIM_SECONDS,
    SWD_SECONDS,
    EvaluationBudget,
    EvaluationCost,
    evaluation_cost,
    time_features,
)


def cost(
    *metrics: str, count: int = 100, images: int = 1000, feature_seconds: float = 0.0, mirror: bool = False
) -> EvaluationCost:
    values = {"extractor": "pixels", "weights": None, "interval_images": None, "best": None, "max_share": 0.1}
    config = EvaluationConfig(metrics=[*metrics], count=count, **values)
    return evaluation_cost(config, images, feature_seconds, ranks=1, mirror=mirror)


@pytest.mark.parametrize(
    ("resolution", "expected", "seconds"),
    [
        (4, cost("swd"), (0.0, 0.0)),  # there is none
        (8, cost("swd"), (100 * (0.01 + 2 * SWD_SECONDS), 100 * (0.01 + SWD_SECONDS))),
        (64, cost("swd"), (100 * (0.01 + 6 * SWD_SECONDS), 100 * (0.01 + 3 * SWD_SECONDS))),
        (64, cost("swd", images=60), (60 * (0.01 + 6 * SWD_SECONDS), 60 * (0.01 + 3 * SWD_SECONDS))),
        (4, cost("kid", "fid", feature_seconds=0.5), (100 * (0.01 + 2 * 0.5), 100 * (0.01 + 0.5))),
        (4, cost("neighbours", feature_seconds=0.5), (100 * (0.01 + 0.5) + 1000 * 0.5, 100 * (0.01 + 0.5))),
        (4, replace(cost("kid", feature_seconds=0.5), ranks=2), (100 * (0.01 + 0.5), 100 * (0.01 + 0.25))),
        (
            4,  # with mirrored fakes, and in the first one mirrored reals, too
            cost("neighbours", feature_seconds=0.5, mirror=True),
            (100 * (0.01 + 3 * 0.5) + 1000 * 0.5, 100 * (0.01 + 2 * 0.5)),
        ),
        (
            64,  # of as many fakes as are asked for, however many images there are
            cost("ms_ssim", images=60),
            (100 * (0.01 + 2 * 64**2 * MS_SSIM_SECONDS), 100 * (0.01 + 64**2 * MS_SSIM_SECONDS)),
        ),
    ],
)
def test_an_evaluation_is_expected_to_cost_what_its_metrics_do(resolution, expected, seconds):
    """Where training shows an image in 0.04 s, and G draws one in 0.01."""
    found = [expected.seconds(resolution, 0.04, first=first) for first in (True, False)]
    assert found == pytest.approx(seconds)


def test_features_are_timed_on_a_few_images():
    shown = []

    def network(images: torch.Tensor) -> torch.Tensor:
        shown.append(tuple(images.shape))
        time.sleep(0.02)
        return images.float().flatten(1)

    seconds = time_features(Extractor("slow", network), 8, torch.device("cpu"))
    assert 0.02 / shown[-1][0] <= seconds < 60
    assert shown == [(shown[0][0], 3, 8, 8)] * 2
    assert time_features(None, 8, torch.device("cpu")) == 0


def test_the_first_evaluation_waits_until_its_expected_cost_fits_with_one_at_the_end():
    """At 8x8, 100 images of 0.01 s and 0.5 s of features: 101 s for the first one, 51 s in reserve for the end."""
    one = EvaluationBudget(0.1, cost("kid", feature_seconds=0.5), now=1000.0)
    assert not one.allows(8, 0.04, 2519.0, last=False)
    assert one.allows(8, 0.04, 2520.1, last=False)
    assert not one.allows(8, 0.04, 2009.0, last=True)
    assert one.allows(8, 0.04, 2010.1, last=True)


def test_the_next_evaluation_is_expected_to_take_as_long_as_the_last_one_at_its_resolution():
    one = EvaluationBudget(0.1, cost("kid", feature_seconds=0.5), now=0.0)
    assert one.expected(8, 0.04) == pytest.approx(100 * (0.01 + 2 * 0.5))
    one.note(8, 10.0, 13.0)
    assert one.expected(8, 0.04) == 3.0
    assert one.expected(16, 0.04) == pytest.approx(101.0)


def test_evaluations_are_spread_evenly_over_their_share_of_the_time_and_there_is_one_at_the_end():
    """Evaluations of 3 s each in 600 s of training, which are expected to take 1 s at first; asked for every second."""
    one, now, ends = EvaluationBudget(0.1, cost("kid"), now=1000.0), 1000.0, [1000.0]
    while now < 1600.0:
        now += 1.0
        if one.allows(32, 0.04, now, last=False):
            one.note(32, now, now + 3.0)
            now += 3.0
            ends.append(now)
            assert one.spent <= 0.1 * (now - 1000.0) or len(ends) == 2  # but for the first, of unknown cost
    assert one.allows(32, 0.04, now, last=True)
    assert one.spent + 3.0 <= 0.1 * (now - 1000.0)
    gaps = [later - earlier for earlier, later in pairwise(ends)]
    # 2 s are a tenth of 20; 3 s spent, 3 expected and 3 in reserve are a tenth of 90; then 3 are one of each 30.
    assert gaps[:3] == [23.0, 70.0, 33.0]
    assert min(gaps[3:]) >= 30.0
    assert not one.allows(64, 4.0, now, last=False)  # 100 s
