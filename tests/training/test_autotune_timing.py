"""What is measured of each method, and when it is worth another one than the heuristic's."""

import pytest
import torch

from pggan.core.architecture import Rescaling
from pggan.networks.convolution import IM2COL, NATIVE, WINOGRAD
from pggan.networks.method_table import ConvolutionShape
from pggan.training import autotune_timing
from pggan.training.autotune_timing import fastest, measure, sample_of

SHAPE = ConvolutionShape(16, 512, 512, 8, 8, Rescaling.same)  # 4 tiles per image; winograd by the heuristic


@pytest.mark.parametrize(
    ("rescaling", "side", "images"),
    [
        (Rescaling.same, 8, 16),  # 4 tiles of 4x4 per image
        (Rescaling.same, 16, 4),
        (Rescaling.down, 32, 1),
        (Rescaling.up, 8, 4),  # tiles of 2x2
        (Rescaling.same, 2, 16),  # no tile at all
        (Rescaling.same, 256, 1),
    ],
)
def test_as_many_images_are_measured_as_fill_the_products(rescaling, side, images):
    shape = SHAPE._replace(height=side, width=side, rescaling=rescaling)
    assert sample_of(shape) == shape._replace(images=images)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rescaling", Rescaling)
def test_every_method_is_measured(rescaling, dtype):
    sample = ConvolutionShape(1, 2, 3, 4, 4, rescaling, dtype)
    seconds = measure(sample)
    winograds = {"winograd", "winograd2"} if dtype is torch.float32 else set()
    assert set(seconds) == {method.name for method in sample.methods()} == {"native", "im2col"} | winograds
    assert all(0 < each < 10 for pair in seconds.values() for each in pair)


def test_the_rule_stays_unless_another_method_is_clearly_faster():
    slow, close, fast = (0.0, 1.0), (0.0, 0.95), (0.0, 0.85)
    assert fastest(SHAPE, {"winograd": slow, "im2col": close}) is WINOGRAD
    assert fastest(SHAPE, {"winograd": slow, "im2col": fast}) is IM2COL
    assert fastest(SHAPE, {"winograd": fast, "im2col": slow}) is WINOGRAD
    assert fastest(SHAPE, {}) is WINOGRAD


def test_measuring_leaves_the_number_of_threads_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(autotune_timing.torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(autotune_timing.torch, "set_num_threads", asked.append)
    measure(ConvolutionShape(1, 2, 3, 4, 4, Rescaling.same))
    assert asked == [1, 3]


def test_preparing_the_kernel_counts_once_and_images_count_each():
    seconds = {"winograd": (1.0, 0.1), "im2col": (0.0, 0.2)}
    assert fastest(SHAPE._replace(images=2), {"im2col": (0.0, 0.2), "winograd": (1.0, 0.1)}) is IM2COL
    assert fastest(SHAPE._replace(images=40), seconds) is WINOGRAD


def test_a_method_whose_kernel_the_step_has_prepared_stays_unless_another_is_clearly_faster():
    shape, seconds = SHAPE._replace(images=2), {"winograd": (1.0, 0.1), "im2col": (0.3, 0.1), "native": (0.0, 0.05)}
    assert fastest(shape, seconds | {"native": (0.0, 0.1)}) is NATIVE
    assert fastest(shape, seconds | {"native": (0.0, 0.1)}, prepared=IM2COL) is IM2COL
    assert fastest(shape, seconds, prepared=IM2COL) is NATIVE
    assert fastest(shape, {}, prepared=IM2COL) is IM2COL
