"""A table has the methods of the shapes that it was given, and the rule's for all others."""

import pytest
import torch

from pggan.core.architecture import Geometry
from pggan.networks.convolution import DIRECT, IM2COL, NATIVE, WINOGRAD, WINOGRAD2, method_for
from pggan.networks.layers import EqualizedConv
from pggan.networks.method_table import BY_RULE, ConvolutionShape, MethodTable, ShapeRecorder
from pggan.networks.numerics import ComputeOptions

X, KERNEL = torch.empty(2, 5, 8, 4), torch.empty(7, 5, 3, 3)
SHAPE = ConvolutionShape(2, 5, 7, 8, 4, Geometry.up)


def test_a_shape_is_that_of_the_images_and_of_the_kernel_and_has_a_name():
    assert ConvolutionShape.of(X, KERNEL, Geometry.up) == SHAPE
    assert str(SHAPE) == "2x5x8x4-up-7"
    assert str(ConvolutionShape.of(X.bfloat16(), KERNEL, Geometry.up)) == "2x5x8x4-up-7-bfloat16"


@pytest.mark.parametrize(
    ("shape", "methods"),
    [
        ((16, 512, 512, 16, 16, Geometry.same), [WINOGRAD, NATIVE, WINOGRAD2]),  # windows of 72 MiB
        ((4, 512, 512, 4, 4, Geometry.same), [IM2COL, NATIVE, WINOGRAD, WINOGRAD2]),
        ((4, 64, 64, 6, 6, Geometry.down), [NATIVE, IM2COL, WINOGRAD2]),  # no whole tiles of 4x4
        ((4, 64, 64, 6, 6, Geometry.up), [NATIVE, IM2COL, WINOGRAD, WINOGRAD2]),
        ((4, 64, 64, 5, 5, Geometry.same), [NATIVE, IM2COL]),
        ((2, 64, 64, 128, 128, Geometry.same), [DIRECT, WINOGRAD, WINOGRAD2]),
        ((4, 512, 512, 4, 4, Geometry.same, torch.bfloat16), [NATIVE, IM2COL]),
    ],
)
def test_the_methods_of_a_shape_are_those_that_can_be_used_with_little_memory(shape, methods):
    assert ConvolutionShape(*shape).methods() == methods


def test_a_table_has_what_it_was_given_and_else_the_rule():
    table = MethodTable({SHAPE: WINOGRAD})
    assert table.method_for(X, KERNEL, Geometry.up) is WINOGRAD
    assert table.method_for(X, KERNEL, Geometry.same) is method_for(X, KERNEL, Geometry.same) is NATIVE
    assert BY_RULE.method_for(X, KERNEL, Geometry.up) is NATIVE
    assert table.names() == {"2x5x8x4-up-7": "winograd"}


def test_a_layer_takes_the_method_of_the_table_unless_the_options_name_one():
    layer, x = EqualizedConv(7, 5, 3, 3, geometry=Geometry.up), torch.ones(2, 5, 8, 4)
    torch.nn.init.ones_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    table = MethodTable({SHAPE: IM2COL})
    for options, expected in (
        (ComputeOptions(table=table), IM2COL),
        (ComputeOptions(method=DIRECT, table=table), DIRECT),
    ):
        layer.context.options, layer.context.cache = options, {}
        layer(x)
        ((_, method),) = layer.context.cache
        assert method is expected


def test_options_with_other_tables_differ():
    """Captured steps are kept by their options."""
    assert ComputeOptions() == ComputeOptions()
    assert ComputeOptions(table=MethodTable({SHAPE: IM2COL})) != ComputeOptions(table=MethodTable({SHAPE: WINOGRAD}))


def test_a_recorder_notes_shapes_and_goes_by_the_rule():
    recorder = ShapeRecorder()
    assert recorder.method_for(X, KERNEL, Geometry.up) is NATIVE
    assert recorder.shapes == {SHAPE}
