"""Which ways of computing a step go together."""

import pytest

from pggan.config import ComputeConfig, ConvolutionMethod, PenaltyStrategy
from pggan.core.errors import UserError


@pytest.mark.parametrize(
    ("choices", "hint"),
    [
        ({"compile": True, "penalty": PenaltyStrategy.autograd}, r"compute\.penalty=autograd\).*\n.*jvp or auto"),
        ({"compile": True, "convolution": ConvolutionMethod.winograd}, r"convolution=winograd.*\n.*convolution=auto"),
        ({"compile": True, "convolution": ConvolutionMethod.im2col}, r"convolution=im2col"),
        ({"compile": True, "convolution": ConvolutionMethod.direct}, r"convolution=direct"),
        ({"activation_checkpointing": True, "compile": True}, r"activation_checkpointing=true needs"),
        ({"activation_checkpointing": True, "penalty": PenaltyStrategy.jvp}, r"needs compute\.penalty=autograd"),
    ],
)
def test_choices_that_exclude_each_other_are_refused(choices, hint):
    with pytest.raises(UserError, match=hint):
        ComputeConfig(**choices)


@pytest.mark.parametrize(
    "choices",
    [
        {"compile": True},
        {"compile": True, "penalty": PenaltyStrategy.jvp, "convolution": ConvolutionMethod.native},
        {"activation_checkpointing": True},
        {
            "activation_checkpointing": True,
            "penalty": PenaltyStrategy.autograd,
            "convolution": ConvolutionMethod.winograd,
        },
        {"penalty": PenaltyStrategy.jvp, "convolution": ConvolutionMethod.im2col, "micro_batch_size": 1},
    ],
)
def test_other_choices_go_together(choices):
    assert ComputeConfig(**choices)
