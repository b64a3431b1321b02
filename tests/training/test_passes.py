"""Compiled forward passes are the passes."""

import pytest
import torch

from pggan.networks.numerics import ComputeOptions
from tests.training.short_run import assert_alike, short_run


@pytest.mark.slow
# torch looks for .grad of what one compiled pass hands to the next, and hides the warning unless all are errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_compiled_steps_are_the_steps_and_alpha_compiles_nothing_anew(monkeypatch):
    """Two steps of a fade, which uses two levels; a backend that generates no code shows what is compiled."""
    compile, graphs = torch.compile, []

    def counted(function, **options):
        def backend(graph, inputs):
            graphs.append(function.__name__)
            return aot_eager(graph, inputs)

        return compile(function, backend=backend, **options)

    from torch._dynamo.backends.debugging import aot_eager

    monkeypatch.setattr(torch, "compile", counted)
    steps = {"first": 80, "images": 96}
    plain, _ = short_run(options=ComputeOptions(jvp=True), **steps)
    compiled, _ = short_run(options=ComputeOptions(jvp=True, compiled=True), **steps)
    assert_alike(compiled, plain, 1e-4, share=0.02)  # Adam turns rounding into signs
    assert sorted(graphs) == ["d_forward", "g_forward", "make_fakes", "make_fakes"]  # fakes with gradient and without
    torch._dynamo.reset()
