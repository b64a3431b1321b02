"""Gradients of several ranks are those of one process, whatever the loss, the labels, the precision."""

import dataclasses
from unittest import mock

import pytest
import torch

from pggan.core.architecture import Precision
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup, rank_from_environment
from pggan.losses.ada import INTERVAL
from pggan.losses.base import Reals
from pggan.ops import elementwise as activation
from pggan.training.build import TrainerSettings, build_trainer
from tests.definitions import LOSSES, before_step, variant
from tests.processes import in_processes, values_of

pytestmark = pytest.mark.slow  # starts processes

CPU = torch.device("cpu")
REDUCERS = {
    "fp32": {"name": "fp32"},
    "bf16": {"name": "bf16"},
    "dgc": {"name": "dgc", "ratio": 0.01, "warmup_images": 0},
}
BATCH = 12  # elastic ranks have one and two chunks of it
ARCHITECTURE = variant(resolution=16, latent_size=8, fmap_base=128, fmap_max=16, stddev_group=2)
PHASE = Phase(3, 8, True, 0.4, 0, 10_000, BATCH, 0.001, 0.002, 1)


@dataclasses.dataclass(frozen=True)
class Case:
    """One step to take, on one rank or on several."""

    loss: str
    num_classes: int = 0
    precision: Precision = Precision.fp32
    gradients: str = "fp32"
    elastic: bool = False
    poison: str = ""  # the network whose gradient is not finite, on the last rank
    ada: bool = False

    def settings(self):
        return TrainerSettings(
            loss=LOSSES[self.loss],
            precision=self.precision,
            elastic=self.elastic,
            gradients=REDUCERS[self.gradients],
            ada_rampup_images=80 if self.ada else None,
        )

    def reals(self):
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(BATCH, 3, PHASE.resolution, PHASE.resolution, generator=generator).clamp(-1, 1)
        if not self.num_classes:
            return Reals(images, None, None)
        one_hot = torch.nn.functional.one_hot(torch.arange(2 * BATCH) % self.num_classes, self.num_classes).float()
        return Reals(images, one_hot[:BATCH], one_hot[BATCH:])


def both(state):
    return (("D", state.d), ("G", state.g))


def flat(trainable):
    return torch.cat([weight.detach().flatten() for weight in trainable.network.weights])


def step(case, group):
    """Gradients of both networks (before the update), the metrics, and the weights before and afterwards."""
    architecture = dataclasses.replace(ARCHITECTURE, num_classes=case.num_classes)
    trainer = build_trainer(case.settings(), architecture, [PHASE], group)
    state, gradients = trainer.state, {}
    for name, trainable in both(state):

        def keep(name=name, trainable=trainable):
            found = [weight.grad for weight in trainable.network.weights if weight.grad is not None]
            scale = 1 if trainable.scale is None else float(trainable.scale)
            gradients[name] = torch.cat([gradient.flatten() for gradient in found]) / scale

        before_step(trainable.optimizer, keep)
        if name == case.poison and group.rank == group.world_size - 1:
            trainable.network.weights[0].register_hook(lambda gradient: gradient * float("nan"))
    if case.ada:
        state.d.adaptive_p.p.fill_(0.5)
        state.d.adaptive_p.updates.fill_(INTERVAL - 1)  # it moves in this step
    before = {name: flat(trainable) for name, trainable in both(state)}
    indices, reals = trainer.indices(BATCH), case.reals()
    # Without the kink of leaky ReLU, where a rounding can change a slope by a factor of five.
    with mock.patch.object(activation, "LEAKY_SLOPE", 1.0):
        metrics = trainer.step(PHASE, reals if indices is None else reals.select(indices), StepRng(0, 0, CPU), 0.9)
    return {
        "gradients": gradients,
        "before": before,
        "weights": {name: flat(trainable) for name, trainable in both(state)},
        "metrics": {name: float(value.float().mean()) for name, value in metrics.items()},
        "skipped": {name: int(trainable.skipped) for name, trainable in both(state)},
    }


def steps(cases):
    """On one rank of several, as plain arrays, which travel between processes."""
    group = ProcessGroup.connect(rank_from_environment(), CPU)
    found = [step(case, group) for case in cases]
    group.shutdown()
    for one in found:
        for part in ("gradients", "before", "weights"):
            one[part] = {name: tensor.numpy() for name, tensor in one[part].items()}
    return found


SAME = [
    *(Case(loss, num_classes=3) for loss in LOSSES),
    Case("logistic", precision=Precision.fp16),
    Case("logistic", elastic=True),
    Case("logistic", ada=True),
    Case("relativistic", ada=True, elastic=True),
    Case("wgan_gp", num_classes=3, precision=Precision.fp16, elastic=True),
]
SHORT = [Case("logistic", gradients="bf16")]
POISONED = [
    Case("wgan_gp", poison="G"),
    Case("wgan_gp", poison="D", elastic=True),
    Case("wgan_gp", poison="G", gradients="dgc"),
]


@pytest.fixture(scope="module")
def of_two():
    """What two ranks found, by case: [of rank 0, of rank 1]."""
    cases = [*SAME, *SHORT, *POISONED]
    of_ranks = values_of(in_processes(2, steps, cases))
    return dict(zip(cases, zip(*of_ranks, strict=True), strict=True))


def alone(case):
    return step(case, ProcessGroup.single_process(CPU))


# The relative error that two orders of the sums in a step may make: about 100 independent roundings, of sums of 1536
# numbers in float32; in half precision of sums of 16 maps of 4x4, where a processor rounds every partial sum.
ROUNDING = {Precision.fp32: 3e-5, Precision.fp16: 0.05}


def off(gradients, wanted):
    """The relative error of a gradient, in Euclidean norms."""
    return float((torch.from_numpy(gradients) - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("case", SAME, ids=str)
def test_two_ranks_have_the_gradients_of_one_process(of_two, case):
    wanted = alone(dataclasses.replace(case, elastic=False))
    for found in of_two[case]:
        for name in "DG":
            tolerance = ROUNDING[case.precision]
            assert wanted["gradients"][name].abs().max() > 1e-4
            assert off(found["gradients"][name], wanted["gradients"][name]) < tolerance
            for metric in (f"{name}/loss", f"{name}/gradient_norm"):
                # A loss is a difference of scores: its rounding is relative to those.
                expected = pytest.approx(wanted["metrics"][metric], rel=tolerance, abs=tolerance)
                assert found["metrics"][metric] == expected
        # Signs are whole numbers: their sums have no rounding, unless a score is at 0.
        assert found["metrics"].get("augment/p") == wanted["metrics"].get("augment/p")
        assert not case.ada or abs(found["metrics"]["augment/p"] - 0.5) == pytest.approx(BATCH / 80)


@pytest.mark.parametrize("case", [*SAME, *SHORT], ids=str)
def test_all_ranks_end_with_the_same_bits(of_two, case):
    one, other = of_two[case]
    for part in ("gradients", "weights"):
        for name in "DG":
            assert (one[part][name] == other[part][name]).all()


@pytest.mark.parametrize("case", [case for case in SAME if case.elastic], ids=str)
def test_elastic_gradients_are_those_of_one_process_bit_by_bit(of_two, case):
    wanted = alone(case)
    for found in of_two[case]:
        for name in "DG":
            assert torch.from_numpy(found["gradients"][name]).equal(wanted["gradients"][name])
            assert torch.from_numpy(found["weights"][name]).equal(wanted["weights"][name])
            assert found["metrics"][f"{name}/loss"] == wanted["metrics"][f"{name}/loss"]


@pytest.mark.parametrize("case", SHORT, ids=str)
def test_a_reducer_in_bf16_is_off_by_its_precision_and_no_more(of_two, case):
    """Each number is rounded to 8 bits, which it keeps whatever its size, on two ranks and after it is added up."""
    wanted = alone(case)
    for found in of_two[case]:
        for name in "DG":
            deviation = off(found["gradients"][name], wanted["gradients"][name])
            # At most 2^-8 of a number each time, and of very many numbers more than a quarter of that.
            assert 2**-10 < deviation < 2 * 2**-8


@pytest.mark.parametrize("case", POISONED, ids=str)
def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_all(of_two, case):
    """The update of that network and no other; all ranks count it."""
    for found in of_two[case]:
        for name in "DG":
            stayed = (found["weights"][name] == found["before"][name]).all()
            assert stayed == (name == case.poison)
            assert found["skipped"][name] == found["metrics"][f"{name}/skipped"] == (name == case.poison)
