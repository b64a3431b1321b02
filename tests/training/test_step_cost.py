"""Fake steps cost what real ones do, by PyTorch's own counter on real tensors and by the layer tables."""

from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pggan.core.architecture import Resampling
from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses.logistic import Logistic
from pggan.losses.relativistic import Relativistic
from pggan.networks.convolution import NATIVE
from pggan.networks.numerics import ComputeOptions
from pggan.optim.state import new_state
from pggan.training.op_counter import OpCounter
from pggan.training.step import Trainer
from pggan.training.step_cost import StepCostEstimator
from pggan.training.trainer_factory import TrainerFactory
from tests.definitions import ADAM, PAPER, WGAN_GP, variant

CPU = torch.device("cpu")
LAZY = replace(WGAN_GP, reg_interval=2)
LOSSES = [LAZY, Logistic(gamma=1.0, reg_interval=2), Relativistic(gamma=1.0, reg_interval=2)]
SMALL = variant(resolution=8, fmap_base=64, fmap_max=8, latent_size=8, num_classes=3)
BATCH = 8


class Everything(nullcontext):
    """Stands in for what tells modules apart, which does not work inside of `torch.autograd.grad`."""

    parents = ("Global",)


def without_modules(counter):
    counter.mod_tracker = Everything()
    return counter


def phase_at(resolution, batch, *, fading=False):
    """In the middle of a fade or of a stable phase, of networks of any resolution."""
    return Phase(0, resolution, fading, 0.5 if fading else 1.0, 0, 10**6, batch, 0.001, 0.001, 0)


def phase(fading):
    return phase_at(8, BATCH, fading=fading)


def real_step(state, phase, loss, images, options=ComputeOptions(), labels=None):  # noqa: B008
    """A step on real tensors, as `StepCostEstimator` takes it on fake ones."""
    count, side = phase.batch, phase.resolution
    reals = Reals(torch.rand(count, 3, side, side), labels, labels)
    trainer = Trainer(state, loss, options, reset_at_phase=False)
    trainer.step(phase, reals, StepRng(0, images, CPU), 0.9)


def fake(architecture=PAPER, loss=WGAN_GP, options=ComputeOptions(), device=CPU):  # noqa: B008
    return StepCostEstimator(architecture, TrainerFactory(loss, ADAM, options), device)


LARGE = 64  # images of a batch: at 1024x1024 they would need 100 GB if they were real


@cache
def papers_count(resolution, fading):
    """The count of a step of the paper's networks and loss; taken without memory, and once."""
    return fake().count(phase_at(resolution, LARGE, fading=fading))


def of_layers(counter):
    """What torch counts, without the products that bring kernels into form."""
    counts = counter.get_flop_counts()["Global"]
    return sum(count for operation, count in counts.items() if operation is not torch.ops.aten.bmm)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "fading"),
    [*((loss, False) for loss in LOSSES), (LAZY, True)],
    ids=lambda value: str(value) if isinstance(value, bool) else type(value).__name__,
)
def test_a_step_counts_what_torch_counts_on_real_tensors(loss, fading):
    flops = fake(SMALL, loss).count(phase(fading)).flops
    state = new_state(SMALL, ADAM, 0, CPU)
    one_hot = torch.eye(3)[torch.arange(BATCH) % 3]
    totals = []
    for images in (0, BATCH):  # of every two steps the first has penalties
        with without_modules(FlopCounterMode(display=False)) as counter:
            real_step(state, phase(fading), loss, images, ComputeOptions(method=NATIVE), one_hot)
        totals.append(of_layers(counter))
    assert flops.mean(1) == totals[0]
    assert flops.mean(1) - flops.penalty == totals[1]
    assert flops.mean(2) == sum(totals) / 2


@pytest.mark.slow
@pytest.mark.parametrize("fading", [False, True])
def test_forward_passes_count_what_torch_counts_on_real_tensors(fading):
    flops = fake(SMALL).count(phase(fading)).flops
    state, alpha = new_state(SMALL, ADAM, 0, CPU), phase(fading).alpha
    with FlopCounterMode(display=False) as generator, torch.no_grad():
        images = state.g.network(torch.randn(BATCH, 8), torch.zeros(BATCH, 3), 8, alpha)
    with FlopCounterMode(display=False) as discriminator, torch.no_grad():
        state.d.network(images, 8, alpha)
    assert flops.generator_forward == 2 * of_layers(generator)
    # Once for reals and fakes together, once for G's fakes; of what the kernels need, which a batch shares, counts
    # the sums of a 3x3 kernel's taps: 9 multiply-adds for each of 16 places, for every output map of the head.
    taps = 2 * 9 * 16 * SMALL.width(4)
    assert flops.discriminator_forward == 3 * of_layers(discriminator) - taps


@pytest.mark.slow
@pytest.mark.parametrize(("resampling", "g", "d"), [
    (Resampling.fused, 27_489_468_416, 27_489_542_656),
    (Resampling.unfused, 42_672_848_896, 42_672_923_136),
])  # fmt: skip
def test_passes_at_1024_have_the_multiply_adds_of_the_papers_layers(resampling, g, d):
    """Sums over the table of layers; a step has 2 forward passes of G and 3 of D, and their adjoints."""
    papers = resampling is PAPER.resampling
    count = papers_count(1024, False) if papers else fake(variant(resampling=resampling)).count(phase_at(1024, LARGE))
    flops = count.flops
    assert flops.generator_forward == pytest.approx(2 * 2 * g * LARGE, rel=1e-4)
    assert flops.discriminator_forward == pytest.approx(3 * 2 * d * LARGE, rel=1e-4)
    # Backward: of G images and kernels, of D the same for reals and fakes, and images alone in the step of G.
    assert flops.backward == pytest.approx((2 * g + 5 * d) * 2 * LARGE, rel=0.01)
    # The penalty: forward, input gradient, and twice each of that differentiated again.
    assert flops.penalty == pytest.approx(6 * 2 * d * LARGE, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("resolution", "fading", "g", "d"),
    [(4, False, 6_556_163, 6_561_793), (8, True, 11_277_318, 11_283_457), (1024, False, 23_071_507, 23_077_137)],
)
def test_gradients_are_those_of_the_levels_in_use(resolution, fading, g, d):
    """4x4 and 1024x1024: sums over the table of layers.  A fading phase has the next toRGB and fromRGB besides."""
    count = papers_count(resolution, fading)
    assert (count.generator_gradient, count.discriminator_gradient) == (g, d)


# ---- memory and time -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ComputeOptions(),
        ComputeOptions(micro_batch_size=4),
        ComputeOptions(activation_checkpointing=True),
        ComputeOptions(jvp=True),
    ],
)
def test_the_predicted_memory_is_that_of_a_real_step(options):
    small = variant(resolution=8, fmap_base=256, fmap_max=32, latent_size=32)
    predicted = fake(small, options=options).peak_bytes(phase_at(8, 8))
    state = new_state(small, ADAM, 0, CPU)
    real_step(state, phase_at(8, 8), WGAN_GP, 0, options)  # makes the moments
    present = [tensor for part in state.state_dict().values() for tensor in part.values()]
    with OpCounter(present) as counter:
        real_step(state, phase_at(8, 8), WGAN_GP, 8, options)
    assert predicted == pytest.approx(counter.peak, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("resolution", "billions"), [(4, 1.5), (32, 166), (1024, 989)])
def test_operations_are_those_of_the_layers(resolution, billions):
    # Forward and backward passes of both networks with gradient penalty, by hand from the layer tables.
    assert papers_count(resolution, False).flops.mean(1) / (LARGE * 1e9) == pytest.approx(billions, rel=0.03)


@pytest.mark.slow
def test_a_step_for_any_cuda_device_counts_as_one_here():
    meta = fake(SMALL, LAZY, device=torch.device("meta"))
    found, here = meta.count(phase(True)), fake(SMALL, LAZY).count(phase(True))
    settings = 3 * 4  # bytes: both learning rates and the decay are tensors on CUDA
    assert found == replace(here, moved_bytes=tuple(moved + settings for moved in here.moved_bytes))


@pytest.mark.slow
def test_kernels_are_counted_with_penalties_and_without_and_memory_without_levels_that_are_not_in_use():
    def kernels(resolution):
        options, device = ComputeOptions(dtype=torch.bfloat16), torch.device("meta")
        step = fake(variant(SMALL, resolution=resolution), LAZY, options, device)
        return step.weight_bytes, step.kernels(phase_at(4, BATCH))

    (small, found), (large, others) = kernels(4), kernels(8)
    assert sum(found.without.values()) < sum(found.with_penalties.values())
    # Weights of G and D, and of the averaged G, which is half as large to within its last layer; Adam's step counts.
    extra = others.peak_bytes - found.peak_bytes
    assert extra == pytest.approx(1.5 * (large - small), rel=0.05)


@pytest.mark.slow
def test_estimates_leave_real_ones_alone():
    fake(SMALL).peak_bytes(phase(fading=False))
    state = new_state(SMALL, ADAM, 0, CPU)
    one_hot = torch.eye(3)[torch.arange(BATCH) % 3]
    real_step(state, phase(fading=False), WGAN_GP, 0, labels=one_hot)
    assert all(torch.isfinite(parameter).all() for parameter in state.g.network.parameters())


@pytest.mark.slow
def test_lazy_penalties_cost_their_share():

    def cost(reg_interval):
        return fake(variant(resolution=4), Logistic(gamma=1.0, reg_interval=reg_interval)).cost(phase_at(4, 4))

    every, second, fourth = cost(1), cost(2), cost(4)
    without = 2 * second.flops - every.flops
    assert 0 < without < every.flops
    assert fourth.flops == pytest.approx((every.flops + 3 * without) / 4, rel=1e-6)
    assert fourth.moved_bytes < second.moved_bytes < every.moved_bytes
    assert fourth.peak_bytes == every.peak_bytes
