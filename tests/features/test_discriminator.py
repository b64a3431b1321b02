"""The discriminator that looks at pretrained features: what it learns, what stays, and how a step uses it."""

import dataclasses

import pytest
import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode

from pggan.augmentation import build_augmentation
from pggan.cli.commands import CONFIGS
from pggan.core.architecture import Resampling
from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses.logistic import Logistic
from pggan.losses.relativistic import Relativistic
from pggan.networks.convolution import NATIVE
from pggan.networks.features import discriminator
from pggan.networks.features.discriminator import ProjectedDiscriminator, new_discriminator
from pggan.networks.features.projection import WIDTH, FeatureProjection
from pggan.networks.networks import Discriminator, initialize, use_options
from pggan.networks.numerics import ComputeOptions
from pggan.optim.state import new_state, state_sha256
from pggan.training.passes import d_forward, make_fakes
from pggan.training.step import Trainer
from pggan.training.step_cost import StepCostEstimator
from pggan.training.trainer_factory import TrainerFactory
from tests.definitions import ADAM, WGAN_GP, variant
from tests.features.conftest import tiny_backbone
from tests.processes import in_processes, values_of

pytestmark = pytest.mark.usefixtures("tiny")

CPU = torch.device("cpu")
ARCHITECTURE = variant(
    resolution=16, latent_size=6, fmap_base=64, fmap_max=6, stddev_group=2, features="tiny@00", features_from=8
)
LOGISTIC = Logistic(gamma=2.0, reg_interval=1)
ROUNDING = 1e-5  # of scores below 1, by sums of up to 2^9 products in three layers of float32
PHASE = Phase(3, 8, True, 0.5, 0, 10_000, 4, 0.001, 0.002, 1)


def discriminator_of(**changes):
    network = new_discriminator(variant(ARCHITECTURE, **changes))
    initialize(network, 0, "discriminator")
    return network


def reals_of(number=0, side=8, labels=None):
    images = torch.randn(4, 3, side, side, generator=torch.Generator().manual_seed(number)).clamp(-1, 1)
    return Reals(images, labels, labels)


def take(loss=LOGISTIC, state=None, steps=1, phase=PHASE, architecture=ARCHITECTURE, **options):
    """The state after some steps, and what the last one reported."""
    state = state or new_state(architecture, ADAM, 0, CPU)
    trainer = Trainer(state, loss, ComputeOptions(**options), reset_at_phase=False)
    for _ in range(steps):
        reals = reals_of(state.images, phase.resolution)
        metrics = trainer.step(phase, reals, StepRng(0, state.images, CPU), 0.9)
    return state, metrics


def digest(state):
    return state_sha256(state.state_dict(), state.images, state.phase_index)


def plain_of(network):
    plain = Discriminator(variant(network.architecture, features=None))
    initialize(plain, 0, "discriminator")
    return plain


def test_below_the_first_resolution_it_is_the_plain_one():
    network = discriminator_of()
    images = reals_of(side=4).images
    assert torch.equal(network(images, 4)[0], plain_of(network)(images, 4)[0])


def test_the_part_of_the_heads_fades_in_beside_the_plain_one_at_the_first_resolution_alone():
    network = discriminator_of(num_classes=2)
    plain = plain_of(network)

    def heads(side, alpha):
        images = reals_of(side=side).images
        pairs = zip(network(images, side, alpha), plain(images, side, alpha), strict=True)
        return torch.cat([(both - alone).flatten() for both, alone in pairs])

    whole = heads(8, 1.0)
    assert whole.abs().min() > 10 * ROUNDING
    assert not heads(8, 0.0).any()
    torch.testing.assert_close(heads(8, 0.25), whole / 4, rtol=0, atol=ROUNDING)
    torch.testing.assert_close(heads(16, 0.25), heads(16, 1.0), rtol=0, atol=ROUNDING)


def test_projections_are_saved_and_the_backbone_is_not():
    names = [
        name for name in discriminator_of().state_dict() if name not in dict(discriminator_of().named_parameters())
    ]
    assert names == [
        f"projection.{kind}.{scale}.weight" for kind in ("mix_channels", "mix_scales") for scale in range(4)
    ]


def test_coarse_scales_reach_finer_ones_and_not_the_other_way_round():
    projection = FeatureProjection([2, 2, 2, 2])
    initialize(projection, 0, "projection")
    maps = [torch.zeros(1, 2, side, side) for side in (16, 8, 4, 2)]
    maps[2] += 1
    assert [bool(found.any()) for found in projection(maps)] == [True, True, True, False]


def test_a_step_trains_the_heads_and_leaves_features_and_projections():
    state, metrics = take()
    d, new = state.d.network, discriminator_of()
    assert isinstance(d, ProjectedDiscriminator)
    assert all(value.isfinite().all() for value in metrics.values())
    for name, weight in new.state_dict().items():
        used = not name.startswith(("projection", "blocks.16", "from_rgb.16"))
        assert torch.equal(weight, d.state_dict()[name]) != used, name
    for one, other in zip(d.backbone.buffers(), tiny_backbone().buffers(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("jvp", [False, True], ids=["autograd", "jvp"])
def test_penalties_are_taken_at_images_and_projected_features(jvp):
    state = new_state(ARCHITECTURE, ADAM, 0, CPU)
    d, reals = state.d.network, reals_of()
    features = d.features(reals.images).requires_grad_()
    (gradient,) = torch.autograd.grad(d.score_features(features, 8, PHASE.alpha)[0].sum(), features)
    assert gradient[:, : 3 * 8**2].any()
    assert gradient[:, 3 * 8**2 :].any()
    expected = LOGISTIC.gamma / 2 * gradient.square().sum((1, 2, 3))
    _, metrics = take(state=state, jvp=jvp)
    # Sums of 576 products in up to 3 layers, of float32.
    torch.testing.assert_close(metrics["D/r1"], expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    "loss", [WGAN_GP, LOGISTIC, Relativistic(gamma=1.0, reg_interval=1)], ids=lambda loss: type(loss).__name__
)
def test_every_loss_trains_and_micro_batches_give_the_same_update(loss):
    whole, metrics = take(loss)
    assert all(value.isfinite().all() for value in metrics.values())
    divided, _ = take(loss, micro_batch_size=2)
    pairs = zip(whole.d.optimizer.params, divided.d.optimizer.params, strict=True)
    used = [pair for pair in pairs if pair[0] in whole.d.optimizer.state]
    names = [
        name for name, _ in whole.d.network.named_parameters() if not name.startswith(("blocks.16", "from_rgb.16"))
    ]
    assert len(used) == len(names)
    for one, other in used:  # gradients are equal, up to the rounding of sums over pixels and images
        mean, expected = divided.d.optimizer.state[other]["exp_avg"], whole.d.optimizer.state[one]["exp_avg"]
        torch.testing.assert_close(mean, expected, rtol=0, atol=1e-4 * float(expected.abs().max()) + 1e-7)


def test_a_resumed_run_keeps_its_projections_and_every_bit():
    through, _ = take(steps=2)
    half, _ = take()
    resumed = new_state(ARCHITECTURE, ADAM, 1, CPU)  # another seed draws other projections
    resumed.load_state_dict({part: dict(tensors) for part, tensors in half.state_dict().items()})
    resumed.images, resumed.phase_index = half.images, half.phase_index
    take(state=resumed)
    assert digest(resumed) == digest(through)


def test_features_can_be_calculated_in_bfloat16():
    state = new_state(ARCHITECTURE, ADAM, 0, CPU)
    state.d.network.set_backbone(tiny_backbone(), torch.bfloat16)
    exact, images = discriminator_of().features(reals_of().images), reals_of().images
    # Up to 5 layers and 5 projections, each with rounded operands and a rounded result: 30 roundings of 2^-9.
    error = (state.d.network.features(images) - exact).norm() / exact.norm()
    assert 0 < error < 30 * 2**-9
    _, metrics = take(state=state, dtype=torch.bfloat16)
    assert all(value.isfinite().all() for value in metrics.values())


def test_scores_compare_the_images_of_a_group():
    network, images = discriminator_of(), reals_of().images
    alone = network(images, 8)[0]
    alike = network(images[[0, 1, 0, 1]], 8)[0]  # groups are strided: each holds the same image twice
    assert (alone[:2] - alike[:2]).abs().min() > 10 * ROUNDING
    joined = network(torch.cat([images, images[[0, 1, 0, 1]]]), 8, sub_batches=2)[0]
    torch.testing.assert_close(joined, torch.cat([alone, alike]), rtol=0, atol=ROUNDING)


def test_gradients_at_images_are_those_of_finite_differences():
    network = discriminator_of().double()
    network.set_backbone(tiny_backbone(), torch.float64)
    images = reals_of(side=16).images.double().requires_grad_()
    direction = torch.randn(images.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad(network(images, 16)[0].sum(), images)
    step = 1e-6
    ahead, behind = (network(images.detach() + sign * step * direction, 16)[0].sum() for sign in (1, -1))
    # Scores of order 1 in steps of 1e-6 leave rounding of 1e-10; between kinks, curvature only adds 1e-12.
    torch.testing.assert_close((gradient * direction).sum(), (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-7)


def test_features_are_those_of_transformed_images():
    """Of reals and fakes in D's pass, of fakes in G's, each by random numbers of their own."""
    state, shown, fakes, numbers = new_state(ARCHITECTURE, ADAM, 0, CPU), [], [], []
    network = state.d.network
    features = network.features
    network.features = lambda images: shown.append(images.detach().clone()) or features(images)
    augmentation = build_augmentation(
        {**yaml.safe_load((CONFIGS / "augmentation" / "ada.yaml").read_text()), "p": 0.85}
    )
    trainer = Trainer(state, LOGISTIC, ComputeOptions(), augmentation=augmentation, reset_at_phase=False)
    trainer.passes = trainer.passes._replace(
        fakes=lambda *given: fakes.append(make_fakes(*given)) or fakes[-1],
        d=lambda *given, **more: numbers.append(more["augment"]) or d_forward(*given, **more),
    )
    reals = reals_of()
    trainer.step(PHASE, reals, StepRng(0, 0, CPU), 0.9)
    transformed = [
        augmentation.apply(images, numbers[0][:, transform], None).detach()
        for transform, images in ((0, reals.images), (1, fakes[0]), (3, fakes[1]))
    ]
    assert torch.equal(shown[0], torch.cat(transformed[:2]))
    assert torch.equal(shown[1], transformed[2])
    assert len(shown) == 2


def test_labels_are_judged_by_the_same_heads():
    labels = torch.eye(3)[[0, 1, 2, 0]]
    state = new_state(variant(ARCHITECTURE, num_classes=3), ADAM, 0, CPU)
    trainer = Trainer(state, LOGISTIC, ComputeOptions())
    metrics = trainer.step(PHASE, reals_of(labels=labels), StepRng(0, 0, CPU), 0.9)
    assert {"D/class_loss_reals", "G/class_loss_fakes"} <= set(metrics)


@pytest.mark.slow
def test_a_counted_step_has_the_operations_and_the_memory_of_features():
    options = ComputeOptions(method=NATIVE)
    of_trainer = TrainerFactory(LOGISTIC, ADAM, options)
    fake = StepCostEstimator(ARCHITECTURE, of_trainer, CPU)
    count = fake.count(dataclasses.replace(PHASE, alpha=1.0, fading=False))
    network = discriminator_of()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for sub_batches in (2, 1):  # reals and fakes, then G's fakes; weights are prepared once for each pass
            with use_options(network, options):
                network(torch.cat([reals_of().images] * sub_batches), 8, sub_batches=sub_batches)
    counts = counter.get_flop_counts()["Global"]
    forward = sum(counts.values()) - counts[torch.ops.aten.bmm]  # kernels are made by it
    assert count.flops.discriminator_forward == forward
    plain = StepCostEstimator(variant(ARCHITECTURE, features=None), of_trainer, CPU)
    more = fake.peak_bytes(PHASE) - plain.peak_bytes(PHASE)
    assert more > sum(tensor.nbytes for tensor in network.backbone.buffers())


def test_sizes_of_all_resolutions_are_judged():
    network = discriminator_of(resolution=128, resampling=Resampling.unfused)
    for side in (8, 64, 128):
        assert network(torch.zeros(2, 3, side, side), side)[0].shape == (2,)
    features = WIDTH * (16**2 + 8**2 + 4**2 + 2**2)
    assert network.features(torch.zeros(1, 1, 16, 16)).shape == (1, 16**2 + features, 1, 1)


def steps_of(group):
    from pggan.cli.compose import compose
    from pggan.config import TrainConfig
    from pggan.core.validation import validated
    from pggan.training.build import build_trainer

    discriminator.new_backbone = tiny_backbone
    overrides = ["model.fmap_base=64", "model.fmap_max=6", "model.stddev_group=2", "loss=logistic", "elastic=true"]
    config = validated(TrainConfig, compose("train", [*overrides, "distributed.elastic_chunks=2"]))
    trainer = build_trainer(config, ARCHITECTURE, [PHASE], group, check_memory=False)
    indices = trainer.indices(4)
    reals = reals_of()
    trainer.step(PHASE, reals if indices is None else reals.select(indices), StepRng(0, 0, CPU), 0.9)
    return digest(trainer.state)


def on_this_rank():
    from pggan.distributed.process_group import ProcessGroup, rank_from_environment

    torch.set_num_threads(1)
    group = ProcessGroup.connect(rank_from_environment(), CPU, 60)
    found = steps_of(group)
    group.shutdown()
    return found


@pytest.mark.slow  # starts processes
def test_two_ranks_give_the_bits_of_one_in_elastic_training():
    from pggan.distributed.process_group import ProcessGroup

    alone = steps_of(ProcessGroup.single_process(CPU))
    assert values_of(in_processes(2, on_this_rank)) == [alone, alone]
