"""A step of D and G with all Triton kernels in Triton's interpreter, on CPU tensors, against the plain operations.

The interpreter is chosen when triton is first imported, so this file runs itself in a process of its own.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from unittest import mock

import pytest
import torch
from torch import Tensor

from pggan.core.architecture import Rescaling
from pggan.losses.base import PenaltyContext, Reals
from pggan.networks import layers
from pggan.networks.layers import ComputeOptions, backpropagate, use_options
from pggan.networks.networks import Discriminator, Generator
from pggan.ops import elementwise, fused, packed
from pggan.ops.convolution import DENSE, DIRECT, PACKED, POINTWISE, Algorithm, Switches
from tests.definitions import LOSSES, variant
from tests.networks.naive import normal, ready

ARCHITECTURE = variant(resolution=8, fmap_base=32, fmap_max=5, latent_size=6, stddev_group=2)


def algorithm_on_gpu(x: Tensor, shape: torch.Size, rescaling: Rescaling) -> Algorithm:
    """As on a GPU, with packs of pixels already at 8x8."""
    if len(shape) == 2:
        return DENSE
    return POINTWISE if shape[-1] == 1 else PACKED if x.shape[-1] == 8 else DIRECT


def gradients(reference: bool) -> list[Tensor]:
    """The gradients of D's loss with its penalty, and of G's loss, from the second of two steps."""
    loss, options = LOSSES["wgan_gp"], ComputeOptions(reference=reference)
    g, d = ready(Generator, ARCHITECTURE), ready(Discriminator, ARCHITECTURE)
    reals, mix, found = Reals(normal(2, 3, 8, 8), None, None), torch.full((2, 1, 1, 1), 0.3), []

    def critic(images: Tensor, sub_batches: int = 1) -> tuple[Tensor, Tensor]:
        return d(images, 8, torch.tensor(0.4), sub_batches)  # type: ignore[no-any-return]

    for _ in range(2):
        g.zero_grad()
        d.zero_grad()
        with use_options(g, options):
            fakes = g(normal(2, 6, seed=1), None, 8, torch.tensor(0.4))
            with use_options(d, options):
                terms = loss.for_d(critic, reals, fakes, PenaltyContext(loss.penalties(), 1, mix, None)).loss
                backpropagate(sum(term.mean() for term in terms.values()), through_d=False)
            with use_options(d, options, frozen=True):
                backpropagate(loss.for_g(critic, reals, fakes).loss["G/wasserstein"].mean(), through_d=True)
        found = [weight.grad for weight in (*d.weights, *g.weights) if weight.grad is not None]
    return found


@pytest.mark.rare
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: it comes with torch for CUDA")
def test_a_step_with_all_triton_kernels_has_the_gradients_of_the_plain_operations():
    variables = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-m", __name__], env=variables, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    expected, serves = gradients(reference=True), lambda tensor: not Switches.reference
    with (
        mock.patch.multiple(fused, PROGRAMS=5),
        mock.patch.multiple(elementwise, serves=serves),
        mock.patch.multiple(layers, serves=serves, algorithm_for=algorithm_on_gpu),
        mock.patch.object(packed, "MAPS", 12),
    ):
        for one, other in zip(gradients(reference=False), expected, strict=True):
            assert (one - other).norm() <= 1e-5 * other.norm().clamp(min=1e-3), (one, other)
