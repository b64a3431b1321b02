"""Gradients of several processes are those of one, whatever the loss, the labels, the precision."""

import dataclasses

import pytest
import torch

from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup, RankInfo, rank_from_environment
from pggan.losses.gradient_penalty import NormReference
from pggan.losses.logistic import Logistic
from pggan.losses.relativistic import Relativistic
from pggan.losses.wgan_gp import WganGp
from pggan.networks.numerics import ComputeOptions
from pggan.optim.batch_partition import BatchPartition
from pggan.optim.build_reducer import build_reducer
from pggan.optim.dgc import DgcReducer
from pggan.optim.elastic import ElasticReducer
from pggan.optim.reducer import AllReduceBf16, AllReduceFp32, FlatBuffer, GradientReducer
from pggan.optim.state import new_state
from pggan.training.step import learn, set_up
from tests.definitions import ADAM, variant
from tests.processes import in_processes, values_of

CPU = torch.device("cpu")
WAYS = ({"name": "dense"}, {"name": "bf16"}, {"name": "dgc", "ratio": 0.01, "warm_up_images": 0, "clip": None})
BATCH = 8
ARCHITECTURE = variant(resolution=16, latent_size=8, fmap_base=128, fmap_max=16, stddev_group=2)
PHASE = Phase(3, 8, True, 0.4, 0, 10_000, BATCH, 0.001, 0.002, 1)
LOSSES = {
    "wgan_gp": WganGp(
        penalty_weight=10.0, target=1.0, drift=0.001, gp_reference=NormReference.official, reg_interval=1
    ),
    "logistic": Logistic(gamma=1.0, reg_interval=1),
    "relativistic": Relativistic(gamma=1.0, reg_interval=1),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One step to take, on one process or on several."""

    loss: str
    labels: int = 0
    dtype: torch.dtype | None = None
    gradients: str = "dense"
    elastic: bool = False
    poison: str = ""  # the trainable whose gradient is not finite, on the last process

    def reals(self):
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(BATCH, 3, PHASE.resolution, PHASE.resolution, generator=generator).clamp(-1, 1)
        if not self.labels:
            return Reals(images, None, None)
        one_hot = torch.nn.functional.one_hot(torch.arange(2 * BATCH) % self.labels, self.labels).float()
        return Reals(images, one_hot[:BATCH], one_hot[BATCH:])

    def state(self):
        architecture = dataclasses.replace(ARCHITECTURE, labels=self.labels)
        return new_state(architecture, ADAM, 0, CPU, half=self.dtype is torch.float16)


def step(case, group):
    """Gradients of both players (before the update), what was watched, and the weights afterwards."""
    state = case.state()
    caught = {}
    for name, trainable in (("D", state.d), ("G", state.g)):

        def keep(*_, name=name, player=trainable):
            gradients = [weight.grad for weight in trainable.network.weights if weight.grad is not None]
            scale = 1 if trainable.scale is None else float(trainable.scale)
            caught[name] = torch.cat([gradient.flatten() for gradient in gradients]) / scale

        trainable.optimizer.register_step_pre_hook(keep)
        if name == case.poison and group.rank == group.world_size - 1:
            trainable.network.weights[0].register_hook(lambda gradient: gradient * float("nan"))
    partition = BatchPartition(group.rank, group.world_size, ARCHITECTURE.stddev_group, case.elastic, None)
    rows = torch.from_numpy(partition.indices(BATCH)) if group.world_size > 1 else None
    compute = ComputeOptions(dtype=case.dtype, micro_batch_size=partition.micro_batch_size(BATCH))
    reals = case.reals() if rows is None else case.reals().rows(rows)
    setting = set_up(state, PHASE, reals, LOSSES[case.loss], StepRng(0, 0, CPU), decay=0.9, compute=compute, rows=rows)
    exchange = build_reducer({"name": case.gradients}, state, ADAM, group=group, partition=partition)
    watched = train_step(state, *setting, reducer=reducer)
    weights = {name: torch.cat([w.detach().flatten() for w in p.network.weights]) for name, p in players(state)}
    shown = {name: float(value.float().mean()) for name, value in watched.items()}
    skipped = {name: int(trainable.skipped) for name, trainable in players(state)}
    return {"gradients": caught, "shown": shown, "weights": weights, "skipped": skipped}


def players(state):
    return (("D", state.d), ("G", state.g))


def steps(cases):
    """In a process of several, as plain arrays, which travel between processes."""
    group = ProcessGroup.connect(rank_from_environment(), CPU, 60)
    found = [step(case, group) for case in cases]
    group.shutdown()
    for one in found:
        for part in ("gradients", "weights"):
            one[part] = {name: tensor.numpy() for name, tensor in one[part].items()}
    return found


SAME = [
    *(Case(loss) for loss in LOSSES),
    *(Case(loss, labels=3) for loss in LOSSES),
    *(Case(loss, dtype=torch.float16) for loss in LOSSES),
    *(Case(loss, elastic=True) for loss in LOSSES),
    Case("wgan_gp", labels=3, dtype=torch.float16, elastic=True),
]
SHORT = [Case(loss, gradients="bf16") for loss in LOSSES]
POISONED = [Case("wgan_gp", poison=trainable, elastic=elastic) for trainable in "DG" for elastic in (False, True)]


@pytest.fixture(scope="module")
def of_two():
    """What two processes found, by case: [of process 0, of process 1]."""
    cases = [*SAME, *SHORT, *POISONED]
    of_ranks = values_of(in_processes(2, steps, cases))
    return dict(zip(cases, zip(*of_ranks, strict=True), strict=True))


def alone(case):
    return step(case, ProcessGroup.single_process(CPU))


def off(gradients, wanted):
    """The largest deviation, in units of the largest number."""
    return float((torch.from_numpy(gradients) - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("case", SAME, ids=str)
def test_two_processes_have_the_gradients_of_one(of_two, case):
    wanted = alone(dataclasses.replace(case, elastic=False))
    tolerance = 1e-5 if case.dtype is None else 1e-2  # fp16 rounds what a batch adds up, and here that is half of it
    for found in of_two[case]:
        for trainable in "DG":
            assert wanted["gradients"][player].abs().max() > 1e-4
            assert off(found["gradients"][player], wanted["gradients"][player]) < tolerance
            assert found["shown"][f"{player}/loss"] == pytest.approx(wanted["shown"][f"{player}/loss"], rel=tolerance)
            norm = wanted["shown"][f"{player}/gradient_norm"]
            assert found["shown"][f"{player}/gradient_norm"] == pytest.approx(norm, rel=tolerance)


@pytest.mark.parametrize("case", [*SAME, *SHORT], ids=str)
def test_all_processes_end_with_the_same_bits(of_two, case):
    one, other = of_two[case]
    for part in ("gradients", "weights"):
        for trainable in "DG":
            assert (one[part][player] == other[part][player]).all()


@pytest.mark.fault(20)
@pytest.mark.parametrize("case", [case for case in SAME if case.elastic], ids=str)
def test_elastic_gradients_are_those_of_one_process_bit_by_bit(of_two, case):
    wanted = alone(case)
    for found in of_two[case]:
        for trainable in "DG":
            assert torch.from_numpy(found["gradients"][player]).equal(wanted["gradients"][player])
            assert torch.from_numpy(found["weights"][player]).equal(wanted["weights"][player])
            assert found["shown"][f"{player}/loss"] == wanted["shown"][f"{player}/loss"]


@pytest.mark.parametrize("case", SHORT, ids=str)
def test_the_short_exchange_is_off_by_its_precision_and_no_more(of_two, case):
    """Each number is rounded to 8 bits, which it keeps whatever its size, before and after it is added up."""
    wanted = alone(case)
    for found in of_two[case]:
        for trainable in "DG":
            deviation = off(found["gradients"][player], wanted["gradients"][player])
            assert 1e-5 < deviation < 3 * 2**-8


@pytest.mark.fault(26)
@pytest.mark.parametrize("case", POISONED, ids=str)
def test_a_gradient_that_is_not_finite_in_one_process_is_skipped_in_all(of_two, case):
    """That player's update and no other."""
    before = {name: trainable.network.weights for name, trainable in players(case.state())}
    for found in of_two[case]:
        for trainable in "DG":
            start = torch.cat([weight.detach().flatten() for weight in before[player]])
            stayed = torch.from_numpy(found["weights"][player]).equal(start)
            assert stayed == (trainable == case.poison)
            assert found["skipped"][player] == (trainable == case.poison)


# ---- flat tensors ----------------------------------------------------------------------------------------


@pytest.fixture
def player():
    """D with gradients for the levels in use."""
    trainable = Case("wgan_gp").state().d
    for number, weight in enumerate(trainable.network.weights[:-2]):
        weight.grad = torch.empty_like(weight).copy_(torch.randn(weight.shape) + number)
    return player


def test_a_flat_tensor_carries_the_gradients_in_use_and_the_loss(trainable):
    flat = FlatBuffer(trainable)
    used = [weight for weight in trainable.network.weights if weight.grad is not None]
    wanted = [weight.grad.clone() for weight in used]
    numbers = flat.fill(torch.tensor(3.5))
    assert len(numbers) == sum(gradient.numel() for gradient in wanted) + 1
    assert float(flat.place(numbers * 2)) == 7.0
    for weight, gradient in zip(used, wanted, strict=True):
        assert weight.grad.equal(gradient * 2)
    assert all(weight.grad is None for weight in trainable.network.weights[-2:])


def test_gradients_become_views_with_the_strides_of_their_weights(trainable):
    """Fused Adam reads memory in order: weight, gradient and moments must lie alike."""
    flat = FlatBuffer(trainable)
    numbers = flat.fill(torch.tensor(0.0))
    flat.place(numbers)
    strided = 0
    for weight in trainable.network.weights:
        if weight.grad is not None:
            assert weight.grad.stride() == weight.stride()
            assert weight.grad.untyped_storage().data_ptr() == numbers.untyped_storage().data_ptr()
            strided += weight.ndim == 4 and not weight.is_contiguous()
    assert strided  # channels last
    numbers.zero_()
    assert all(float(weight.grad.abs().sum()) == 0 for weight in flat.weights)


def test_a_flat_tensor_is_made_anew_when_other_layers_come_into_use(trainable):
    flat = FlatBuffer(trainable)
    assert flat.fits(trainable)
    trainable.network.weights[-1].grad = torch.zeros_like(trainable.network.weights[-1])
    assert not flat.fits(trainable)


def test_the_exchange_is_chosen_by_name_and_none_is_needed_alone():
    one, two = ProcessGroup.single_process(CPU), ProcessGroup(RankInfo(0, 2, 0, 1), CPU, None, None)
    state, kinds = new_state(ARCHITECTURE, ADAM, 0, CPU), {}
    for world in (one, two):
        for elastic in (False, True):
            partition = BatchPartition(0, group.world_size, 2, elastic, None)
            for options in WAYS[: 1 if elastic else 3]:
                exchange = build_reducer(options, state, ADAM, group=group, partition=partition)
                kinds[group.world_size, elastic, options["name"]] = type(reducer)
    assert [kinds[2, False, options["name"]] for options in WAYS] == [AllReduceFp32, AllReduceBf16, DgcReducer]
    assert {kind for (_, elastic, _), kind in kinds.items() if elastic} == {ElasticReducer}
    assert {kinds[1, False, options["name"]] for options in WAYS} == {GradientReducer}
