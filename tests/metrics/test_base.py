"""Numbers of an evaluation in few words."""

from pggan.metrics.base import summary


def test_the_line_of_an_evaluation_has_means_with_what_reals_have():
    values = {"swd/16@patches-8": 1.0, "swd/mean@patches-8": 41.23, "swd_floor/mean@patches-4": 5.125}
    values |= {"ms_ssim@5scales-8": 0.25, "ms_ssim_reals@5scales-8": 0.2, "recall@pixels-8": 0.5}
    assert list(summary(values)) == [
        "swd/mean@patches-8 41.2 (floor 5.12)",
        "ms_ssim@5scales-8 0.25 (reals 0.2)",
        "recall@pixels-8 0.5",
    ]
