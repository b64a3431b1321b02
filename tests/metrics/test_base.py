"""Numbers of an evaluation in few words."""

from pggan.metrics.base import summary


def test_a_floor_of_as_many_images_needs_no_count():
    values = {"swd/mean@patches-8": 41.23, "swd_floor/mean@patches-8": 5.125}
    assert list(summary(values)) == ["swd/mean@patches-8 41.2 (floor 5.12)"]


def test_the_line_of_an_evaluation_has_means_with_what_reals_have():
    values = {"swd/16@patches-8": 1.0, "swd/mean@patches-8": 41.23, "swd_floor/mean@patches-4": 5.125}
    values |= {"kid@torchvision:a-10000": 3.0, "kid_floor@torchvision:a-5000": 1.0, "swd_floor/16@patches-4": 2.0}
    values |= {"ms_ssim@5scales-8": 0.25, "ms_ssim_reals@5scales-8": 0.2, "recall@pixels-8": 0.5}
    assert list(summary(values)) == [
        "swd/mean@patches-8 41.2 (floor of 4 images: 5.12)",
        "kid@torchvision:a-10000 3 (floor of 5,000 images: 1)",
        "ms_ssim@5scales-8 0.25 (reals 0.2)",
        "recall@pixels-8 0.5",
    ]


def test_what_reals_have_by_other_features_stands_beside_those_only():
    values = {"copies@lite-b0-60": 0.1, "neighbour_distance@lite-b0-60": 22.2, "neighbour_distance@pixels-60": 0.212}
    values |= {"neighbour_distance_reals@lite-b0-60": 18.0, "neighbour_distance_reals@pixels-60": 0.115}
    assert list(summary(values)) == [
        "copies@lite-b0-60 0.1",
        "neighbour_distance@lite-b0-60 22.2 (reals 18)",
        "neighbour_distance@pixels-60 0.212 (reals 0.115)",
    ]
