"""Deep gradient compression: against Adam, by hand, and on two ranks over checkpoints and phases."""

from dataclasses import replace

import pytest
import torch

from pggan.checkpoints.read import newest_checkpoint
from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup, RankInfo
from pggan.optim.dgc import SENT_AS, Compressor, largest, pack, set_mean, share_to_send
from pggan.run import train
from pggan.training.build import TrainerSettings, build_trainer
from tests.definitions import LOSSES, variant
from tests.processes import free_ports, in_processes, set_port, values_of

CPU = torch.device("cpu")
FINITE, ONE = torch.tensor(True), torch.tensor(1.0)
ROUNDING = 2.0**-4  # relative, of what is sent


def select(ours, gradient, count, finite=FINITE):
    return ours.select(gradient.clone(), count, finite, ONE)


def gradients(size, steps):
    """Gradients of very different sizes from entry to entry, as those of a network."""
    generator = torch.Generator().manual_seed(0)
    scales = torch.logspace(-4, 0, size)[torch.randperm(size, generator=generator)]
    return [torch.randn(size, generator=generator) * scales for _ in range(steps)]


def decoded(*messages, count, size):
    return set_mean(torch.empty(size), torch.stack(messages), count)


def adam(size, all_gradients):
    """What Adam with learning rate 1 takes away from weights in all these steps, in float64."""
    weights = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=1.0, betas=(0.0, 0.99), eps=1e-8)
    for gradient in all_gradients:
        weights.grad = gradient.double()
        optimizer.step()
    return -weights.detach()


def test_two_steps_by_hand():
    ours = Compressor(4, CPU)
    # Adam's first update is the sign of the gradient; that of the largest gradient is worth most.
    message = select(ours, torch.tensor([1.0, -4.0, 2.0, 0.0]), 1)
    torch.testing.assert_close(decoded(message, count=1, size=4), torch.tensor([0.0, -1, 0, 0]))
    torch.testing.assert_close(ours.residual, torch.tensor([1.0, 0, 1, 0]))
    # Mean squares after the second step: (0.99 * old + new) / 1.99, and their roots 2.241, 2.910, 1.455, 0.
    message = select(ours, torch.tensor([3.0, 1.0, 0.5, 0.0]), 2)
    # Waiting: 1 + 3 / 2.241 = 2.338, 1 / 2.910 = 0.344, 1 + 0.5 / 1.455 = 1.344, 0; worth: 3.50, 0.59, 1.62, 0.
    sent = decoded(message, count=2, size=4)
    assert sent.tolist() == [2.25, 0, 1.375, 0]  # with three bits behind the first
    torch.testing.assert_close(sent + ours.residual, torch.tensor([2.3384, 0.3437, 1.3436, 0]), rtol=0, atol=1e-3)


@pytest.mark.parametrize("count", [20, 1000])
def test_what_was_sent_and_what_waits_add_up_to_adam(count):
    size, all_gradients = 1000, gradients(1000, 30)
    ours, sent = Compressor(size, CPU), torch.zeros(1000, dtype=torch.float64)
    for gradient in all_gradients:
        sent += decoded(select(ours, gradient, count), count=count, size=size)
    torch.testing.assert_close(sent + ours.residual, adam(size, all_gradients), rtol=1e-5, atol=1e-4)
    assert count < size or ours.residual.abs().max() < 4 * ROUNDING  # of the last message


def test_a_gradient_that_is_not_finite_leaves_no_trace():
    ours, other = Compressor(50, CPU), Compressor(50, CPU)
    first, second = gradients(50, 2)
    for each in (ours, other):
        select(each, first, 5)
    select(other, torch.full((50,), torch.inf), 5, torch.tensor(False))
    assert torch.equal(select(ours, second, 5), select(other, second, 5))


@pytest.mark.parametrize("count", [0, 1, 1003])
@pytest.mark.parametrize("size", [65_536, 65_537])
def test_a_message_holds_its_entries_in_three_bytes_each(count, size):
    indices = torch.randperm(size, generator=torch.Generator().manual_seed(count))[:count].sort().values
    values = torch.linspace(-448, 448, count).to(SENT_AS)
    message = pack(indices, values, size)
    assert 0 <= len(message) - 3 * count - 4 * -(-size // 65_536) < 4
    expected = torch.zeros(size).index_put((indices,), values.float())
    assert torch.equal(decoded(message, message, count=count, size=size), expected)


@pytest.mark.parametrize("kind", ["layers", "few", "equal"])
@pytest.mark.parametrize("count", [1, 250_001, 1_000_003])
def test_exactly_the_largest_are_selected(kind, count):
    generator, size = torch.Generator().manual_seed(1), 1_000_003
    layers = torch.randn(size, generator=generator).abs() * torch.logspace(-6, 2, size)
    few = torch.zeros(size)
    few[torch.randperm(size, generator=generator)[:50]] = 1.0
    vector = {"layers": layers, "few": few, "equal": torch.ones(size)}[kind]
    found = largest(vector, count)
    assert len(found.unique()) == count
    assert torch.equal(vector[found].sort(descending=True).values, vector.topk(count).values)


def test_the_ratio_falls_by_quarters_to_its_end():
    shares = [share_to_send(0.01, 3000, since) for since in (0, 999, 1000, 2000, 2999, 3000, 10**9)]
    assert shares == [1 / 4, 1 / 4, 1 / 16, 1 / 64, 1 / 64, 0.01, 0.01]
    assert [share_to_send(0.25, 1000, 0), share_to_send(0.1, 0, 0)] == [0.25, 0.1]


# ---- on two ranks ----------------------------------------------------------------------------------------

SMALL = variant(resolution=8, fmap_base=64, fmap_max=8, latent_size=8, stddev_group=2)
FIRST = Phase(0, 4, False, 1.0, 0, 16, 8, 0.001, 0.001, 1)


def trainer_of(group):
    gradients = {"name": "dgc", "ratio": 0.1, "warmup_images": 8}
    settings = TrainerSettings(loss=LOSSES["logistic"], gradients=gradients)
    return build_trainer(settings, SMALL, [FIRST], group)


def test_the_ratio_falls_in_each_phase_anew():
    reducer = trainer_of(ProcessGroup(RankInfo(1, 2, 1, 2), CPU, None)).reducer
    for images, share in ((1004, 0.25), (1008, 0.1)):
        reducer.begin_step(replace(FIRST, start=1000, end=2000), images)
        assert reducer._share == share


@pytest.mark.parametrize(("ranks", "expected"), [(2, 5.0), (4, 3.0)])
def test_another_number_of_ranks_resumes_with_the_mean_of_what_waited(ranks, expected):
    """As many ranks as there were have each its own."""
    group = ProcessGroup(RankInfo(1, ranks, 1, ranks), CPU, None)  # reaches nobody
    reducer, shapes = trainer_of(group).reducer, {"residual": (7,), "exp_avg_sq": (7,), "steps": ()}
    ours = {rank: {f"d/{rank}/{name}": torch.full(shapes[name], 1.0 + 4 * rank) for name in shapes} for rank in (0, 1)}
    saved = ours[0] | ours[1]
    reducer.load_extra_state(saved)
    assert all((tensor == expected).all() for tensor in reducer._compressors["d"].tensors.values())


@pytest.mark.slow
def test_a_run_resumes_with_what_had_not_been_sent(tiny_config, tmp_path):
    dgc = ("gradients=dgc", "gradients.ratio=0.1", "gradients.warmup_images=16", "schedule.final_resolution=8")
    straight = tiny_config(f"run_dir={tmp_path / 'straight'}", *dgc)
    first = tiny_config(f"run_dir={tmp_path / 'parts'}", "schedule.total_images=72", *dgc)
    rest = tiny_config(f"run_dir={tmp_path / 'parts'}", *dgc)
    assert values_of(in_processes(2, runs, [straight, first], free_ports(2))) == [[0, 0]] * 2
    kept = newest_checkpoint(tmp_path / "parts")[0].load("compression")
    assert {name.split("/")[0] + name.split("/")[1] for name in kept} == {"g0", "g1", "d0", "d1"}
    assert not kept["d/0/residual"].equal(kept["d/1/residual"])  # each rank waits with its own
    assert values_of(in_processes(2, runs, [rest], free_ports(1))) == [[0], [0]]
    ends = [newest_checkpoint(tmp_path / name)[0].header["state_sha256"] for name in ("parts", "straight")]
    assert ends[0] == ends[1]
    # Alone, nothing is compressed: Adam begins anew, the weights go on.
    assert train.run(tiny_config(f"run_dir={tmp_path / 'parts'}", "schedule.total_images=112", *dgc)) == 0


def runs(configs, ports):
    """The exit codes of runs, each at its own port: else a rank may meet the store of the run before."""
    codes = []
    for config, port in zip(configs, ports, strict=True):
        set_port(port)
        codes.append(train.run(config))
    return codes
