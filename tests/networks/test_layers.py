"""Equalised layers, the minibatch standard deviation, and layers under `use_options`."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from pggan.networks.layers import ComputeOptions, minibatch_stddev, use_options
from pggan.networks.networks import Discriminator, Generator
from tests.definitions import ready, variant
from tests.networks.naive import naive_stddev, normal


@pytest.mark.parametrize(("count", "group"), [(8, 4), (4, 2), (4, 4), (3, 4), (1, 4), (6, 2)])
def test_joined_batches_have_groups_of_their_own_whose_stddev_is_that_of_the_definition(count, group):
    parts = normal(3, count, 3, 4, 4) * torch.tensor([1, 5, 1]).view(3, 1, 1, 1, 1)
    expected = [naive_stddev(part.double().numpy(), group)[:, -1, 0, 0] for part in parts]
    found = minibatch_stddev(parts.flatten(0, 1), group, sub_batches=3)
    np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-5)
    # Deviation 1 around 1000: mean of squares minus square of mean would lose it in float32.
    assert minibatch_stddev(torch.tensor([999.0, 1001.0]).view(2, 1, 1, 1), 2).tolist() == [1, 1]
    half = minibatch_stddev(parts.flatten(0, 1).bfloat16(), group, sub_batches=3)
    assert half.dtype == torch.float32


def test_gradients_through_minibatch_stddev_are_those_of_finite_differences_and_finite_for_identical_images():
    assert torch.autograd.gradcheck(
        lambda x: minibatch_stddev(x, 2), normal(4, 1, 1, 2, dtype=torch.float64).requires_grad_()
    )
    x = normal(1, 3, 4, 4).repeat(4, 1, 1, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(minibatch_stddev(x, 4).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    assert gradient.isfinite().all()
    assert x.grad.isfinite().all()


# ---- networks under options -------------------------------------------------------------------------------

WIDE = variant(resolution=8, fmap_base=1024, fmap_max=128, latent_size=16, stddev_group=2)


def gradients(kind, network, options):
    """The gradients of a wide network after two passes, which share prepared kernels where there are `options`."""
    given = normal(4, 16) if kind is Generator else normal(4, 3, 8, 8)
    network.zero_grad(set_to_none=True)
    with nullcontext() if options is None else use_options(network, options):
        passes = [network(x, None, 8) if kind is Generator else network(x, 8)[0] for x in (given, 2 * given[:2])]
        sum(result.square().sum() for result in passes).backward()
    return torch.cat([weight.grad.flatten() for weight in network.weights if weight.grad is not None])


@pytest.mark.parametrize("kind", [Generator, Discriminator])
def test_passes_of_wide_layers_that_share_their_kernels_give_the_gradients_of_plain_ones(kind):
    network = ready(kind, WIDE)
    expected = gradients(kind, network, ComputeOptions(reference=True))
    for options in (ComputeOptions(), None):
        assert (gradients(kind, network, options) - expected).norm() <= 1e-5 * expected.norm()


def test_frozen_weights_get_no_gradients_and_images_get_theirs():
    d, images = ready(Discriminator, WIDE), normal(2, 3, 8, 8).requires_grad_()
    with use_options(d, ComputeOptions(), frozen=True):
        d(images, 8)[0].sum().backward()
    assert images.grad.abs().sum() > 0
    assert all(weight.grad is None and weight.requires_grad for weight in d.weights)
