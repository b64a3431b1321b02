"""Keys of the benchmarks: variants of the step, stages."""

import pytest

from pggan.config import BenchConfig, BenchScalingConfig, ConvolutionMethod, PenaltyStrategy, Precision, Switch
from pggan.core.errors import UserError
from pggan.core.validation import validated
from tests.composed import composed


def bench(*overrides):
    return validated(BenchConfig, composed("bench", list(overrides)))


def test_variants_are_all_combinations_by_name():
    choices = [
        "precisions=[auto,bf16]",
        "modes=[eager,graph]",
        "convolutions=[auto,im2col]",
        "compute.micro_batch_size=4",
    ]
    variants = bench(*choices).variants()
    assert list(variants) == [
        f"{precision} {mode}{method}"
        for precision in ("auto", "bf16")
        for mode in ("eager", "graph")
        for method in ("", " im2col")
    ]
    assert variants["bf16 graph im2col"].precision is Precision.bf16
    compute = variants["bf16 graph im2col"].compute
    assert (compute.convolution, compute.penalty) == (ConvolutionMethod.im2col, PenaltyStrategy.auto)
    assert (compute.compile, compute.cuda_graphs, compute.micro_batch_size) == (False, Switch.on, 4)
    assert variants["auto eager"].compute.cuda_graphs is Switch.off


def test_compiled_modes_compile():
    variants = bench("modes=[eager,compiled,compiled_graph]").variants()
    compiled = {name: one.compute.compile for name, one in variants.items()}
    assert compiled == {"auto eager": False, "auto compiled": True, "auto compiled_graph": True}


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        (["modes=[compiled]", "penalties=[autograd]"], "'auto compiled autograd'.*twice"),
        (["modes=[eager,compiled]", "convolutions=[winograd]"], "'auto compiled winograd'"),
        (["compute.activation_checkpointing=true", "penalties=[jvp]"], "'auto eager jvp'.*activation_checkpointing"),
        (["compute.activation_checkpointing=true", "modes=[compiled]"], "'auto compiled'.*activation_checkpointing"),
        (["modes=[fast]"], "(?s)modes.*compiled_graph"),
        (["modes=[]"], "modes=\\[\\].*"),
        (["precisions=[]"], "precisions=\\[\\]"),
        (["precisions=[fp8]"], "(?s)precisions.*bf16"),
        (["convolutions=[columns]"], "(?s)convolutions.*im2col"),
        (["penalties=[tangent]"], "(?s)penalties.*jvp"),
        (["compute.micro_batch_size=6"], "Use 4"),
        (["stages=[4,12]"], "powers of two"),
        (["stages=[2]"], "powers of two"),
        (["stages=[]"], "for example"),
        (["batch=6"], "groups"),
        (["steps=0"], "at least 1"),
        (["warmup=-1"], "at least 0"),
        (["data.batches=0"], "data.batches=0"),
        (["against=true", "model.features=efficientnet-lite0"], "against=true"),
        (["against=true", "model.residual=true"], "the paper's networks"),
        (["against=true", "model.blur=true"], "the paper's networks"),
        (["against=true", "model.bilateral=4"], "the paper's networks"),
    ],
)
def test_what_can_not_be_measured_is_refused(overrides, hint):
    with pytest.raises(UserError, match=hint):
        bench(*overrides)


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("processes=[]", "numbers of ranks"),
        ("processes=[0]", "numbers of ranks"),
        ("devices=tpu", "auto, cpu or cuda"),
        ("warmup=0", "at least 1"),
        ("gradients.name=sparse", "fp32"),
        ("batch=6", "does not divide"),
        ("distributed.nnodes=2", "HOST:PORT"),
    ],
)
def test_what_can_not_be_compared_is_refused(override, hint):
    with pytest.raises(UserError, match=hint):
        validated(BenchScalingConfig, composed("bench scaling", [override]))
