"""Operations, against PyTorch's own counter on real tensors, and against the layer tables."""

import dataclasses
from contextlib import nullcontext

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pggan.bench.steps import phase_of
from pggan.core.architecture import Resampling
from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.losses.logistic import Logistic
from pggan.losses.relativistic import Relativistic
from pggan.networks.convolution import NATIVE
from pggan.networks.numerics import ComputeOptions
from pggan.optim.state import new_state
from pggan.training.fake_step import Counter, halfway
from pggan.training.step import train_step
from tests.definitions import ADAM, PAPER, WGAN_GP, variant

CPU = torch.device("cpu")
LAZY = dataclasses.replace(WGAN_GP, reg_interval=2)
LOSSES = [LAZY, Logistic(gamma=1.0, reg_interval=2), Relativistic(gamma=1.0, reg_interval=2)]
SMALL = variant(resolution=16, fmap_base=64, fmap_max=8, latent_size=8, labels=3)
BATCH = 8


class Everything(nullcontext):
    """Stands in for what tells modules apart, which does not work inside of `torch.autograd.grad`."""

    parents = ("Global",)


def without_modules(counter):
    counter.mod_tracker = Everything()
    return counter


def phase(fading):
    return halfway(dataclasses.replace(phase_of(16, BATCH), fading=fading))


def of_layers(counter):
    """What torch counts, without the products that bring kernels into form."""
    counts = counter.get_flop_counts()["Global"]
    return sum(count for operation, count in counts.items() if operation is not torch.ops.aten.bmm)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("fading", [False, True])
def test_a_step_counts_what_torch_counts_on_real_tensors(loss, fading):
    flops = Counter(SMALL, ADAM, loss).count(phase(fading)).flops
    state = new_state(SMALL, ADAM, 0, CPU)
    one_hot = torch.eye(3)[torch.arange(BATCH) % 3]
    reals = Reals(torch.rand(BATCH, 3, 16, 16), one_hot, one_hot)
    totals = []
    for images in (0, BATCH):  # of every two steps the first has penalties
        with without_modules(FlopCounterMode(display=False)) as counter:
            options = {"decay": 0.9, "compute": ComputeOptions(method=NATIVE)}
            train_step(state, phase(fading), reals, loss, StepRng(0, images, CPU), **options)
        totals.append(of_layers(counter))
    assert flops.mean(1) == totals[0]
    assert flops.mean(1) - flops.penalty == totals[1]
    assert flops.mean(2) == sum(totals) / 2


@pytest.mark.parametrize("fading", [False, True])
def test_forward_passes_count_what_torch_counts_on_real_tensors(fading):
    flops = Counter(SMALL, ADAM, WGAN_GP).count(phase(fading)).flops
    state, alpha = new_state(SMALL, ADAM, 0, CPU), phase(fading).alpha
    with FlopCounterMode(display=False) as generator, torch.no_grad():
        images = state.g.network(torch.randn(BATCH, 8), torch.zeros(BATCH, 3), 16, alpha)
    with FlopCounterMode(display=False) as discriminator, torch.no_grad():
        state.d.network(images, 16, alpha)
    assert flops.generator_forward == 2 * of_layers(generator)
    # Once for reals and fakes together, once for G's fakes; of what the kernels need, which a batch shares, counts
    # the sums of a 3x3 kernel's taps: 9 multiply-adds for each of 16 places, for every output map of the head.
    taps = 2 * 9 * 16 * SMALL.width(4)
    assert flops.discriminator_forward == 3 * of_layers(discriminator) - taps


@pytest.mark.parametrize(("resampling", "g", "d"), [
    (Resampling.fused, 27_489_468_416, 27_489_542_656),
    (Resampling.unfused, 42_672_848_896, 42_672_923_136),
])  # fmt: skip
def test_passes_at_1024_have_the_multiply_adds_of_the_papers_layers(resampling, g, d):
    """Sums over the table of layers; a step has 2 forward passes of G and 3 of D, and their adjoints."""
    flops = Counter(variant(resampling=resampling), ADAM, WGAN_GP).count(phase_of(1024, 4)).flops
    assert flops.generator_forward == pytest.approx(2 * 2 * g * 4, rel=1e-4)
    assert flops.discriminator_forward == pytest.approx(3 * 2 * d * 4, rel=1e-4)
    # Backward: of G images and kernels, of D the same for reals and fakes, and images alone in the step of G.
    assert flops.backward == pytest.approx((2 * g + 5 * d) * 2 * 4, rel=0.01)
    # The penalty: forward, input gradient, and twice each of that differentiated again.
    assert flops.penalty == pytest.approx(6 * 2 * d * 4, rel=0.01)


@pytest.mark.parametrize(
    ("resolution", "fading", "g", "d"),
    [(4, False, 6_556_163, 6_561_793), (8, True, 11_277_318, 11_283_457), (1024, False, 23_071_507, 23_077_137)],
)
def test_gradients_are_those_of_the_levels_in_use(resolution, fading, g, d):
    """4x4 and 1024x1024: sums over the table of layers.  A fading phase has the next toRGB and fromRGB besides."""
    at = halfway(dataclasses.replace(phase_of(resolution, 4), fading=fading))
    count = Counter(PAPER, ADAM, WGAN_GP).count(at)
    assert (count.generator_numbers, count.discriminator_numbers) == (g, d)
