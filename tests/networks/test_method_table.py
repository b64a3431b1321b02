"""A table has the methods of the shapes that it was given, and the heuristic's for all others."""

import pytest
import torch

from pggan.core.architecture import Rescaling
from pggan.networks.convolution import DIRECT, IM2COL, NATIVE, WINOGRAD, WINOGRAD2, method_for
from pggan.networks.layers import EqualizedConv
from pggan.networks.method_table import HEURISTIC, ConvolutionShape, MethodTable, ShapeRecorder
from pggan.networks.numerics import ComputeOptions

X, KERNEL = torch.empty(2, 5, 8, 4), torch.empty(7, 5, 3, 3)
SHAPE = ConvolutionShape(2, 5, 7, 8, 4, Rescaling.up)


def test_a_shape_is_that_of_the_images_and_of_the_kernel_and_has_a_name():
    assert ConvolutionShape.of(X, KERNEL, Rescaling.up) == SHAPE
    assert str(SHAPE) == "2x5x8x4-up-7"
    assert str(ConvolutionShape.of(X.bfloat16(), KERNEL, Rescaling.up)) == "2x5x8x4-up-7-bfloat16"


@pytest.mark.parametrize(
    ("shape", "methods"),
    [
        ((16, 512, 512, 16, 16, Rescaling.same), [WINOGRAD, NATIVE, WINOGRAD2]),  # windows of 72 MiB
        ((4, 512, 512, 4, 4, Rescaling.same), [IM2COL, NATIVE, WINOGRAD, WINOGRAD2]),
        ((4, 64, 64, 6, 6, Rescaling.down), [NATIVE, IM2COL, WINOGRAD2]),  # no whole tiles of 4x4
        ((4, 64, 64, 6, 6, Rescaling.up), [NATIVE, IM2COL, WINOGRAD, WINOGRAD2]),
        ((4, 64, 64, 5, 5, Rescaling.same), [NATIVE, IM2COL]),
        ((2, 64, 64, 128, 128, Rescaling.same), [DIRECT, WINOGRAD, WINOGRAD2]),
        ((4, 512, 512, 4, 4, Rescaling.same, torch.bfloat16), [NATIVE, IM2COL]),
    ],
)
def test_the_methods_of_a_shape_are_those_that_can_be_used_with_little_memory(shape, methods):
    assert ConvolutionShape(*shape).methods() == methods


def test_a_table_has_what_it_was_given_and_else_the_rule():
    table = MethodTable({SHAPE: WINOGRAD})
    assert table.method_for(X, KERNEL, Rescaling.up) is WINOGRAD
    assert table.method_for(X, KERNEL, Rescaling.same) is method_for(X, KERNEL, Rescaling.same) is NATIVE
    assert HEURISTIC.method_for(X, KERNEL, Rescaling.up) is NATIVE
    assert table.names() == {"2x5x8x4-up-7": "winograd"}


def test_a_layer_takes_the_method_of_the_table_unless_the_options_name_one():
    layer, x = EqualizedConv(7, 5, 3, 3, rescaling=Rescaling.up), torch.ones(2, 5, 8, 4)
    torch.nn.init.ones_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    table = MethodTable({SHAPE: IM2COL})
    for options, expected in (
        (ComputeOptions(method_table=table), IM2COL),
        (ComputeOptions(method=DIRECT, method_table=table), DIRECT),
    ):
        layer.context.options, layer.context.cache = options, {}
        layer(x)
        ((_, method),) = layer.context.cache
        assert method is expected


def test_options_with_other_tables_differ():
    """Captured steps are kept by their options."""
    assert ComputeOptions() == ComputeOptions()
    assert ComputeOptions(method_table=MethodTable({SHAPE: IM2COL})) != ComputeOptions(
        method_table=MethodTable({SHAPE: WINOGRAD})
    )


def test_a_recorder_notes_shapes_and_goes_by_the_rule():
    recorder = ShapeRecorder()
    assert recorder.method_for(X, KERNEL, Rescaling.up) is NATIVE
    assert recorder.shapes == {SHAPE}
