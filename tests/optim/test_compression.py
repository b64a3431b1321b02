"""Deep gradient compression against Adam, worked examples and exact selection."""

import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pggan.optim import compression
from pggan.optim.compression import SENT_AS, Compressor, largest, mean_of, pack, share_to_send
from tests.definitions import ADAM

CPU = torch.device("cpu")
FINITE = torch.tensor(True)
ROUNDING = 2.0**-4  # relative, of what is sent


def compressor(size, **changes):
    clip = changes.pop("clip", None)
    return Compressor(size, dataclasses.replace(ADAM, **changes), clip, CPU)


def gradients(size, steps, seed=0):
    """Gradients of very different sizes from entry to entry, as those of a network."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(-4, 0, size)[torch.randperm(size, generator=generator)]
    return [torch.randn(size, generator=generator) * scales for _ in range(steps)]


def decoded(*messages, count, size):
    scratch = torch.zeros(size)
    indices, updates = mean_of(torch.stack(messages), count, scratch)
    assert len(indices) == len(messages) * count
    assert scratch.count_nonzero() == 0
    return scratch.index_add(0, indices, updates)


def adam(size, all_gradients, beta1):
    """What Adam with learning rate 1 takes away from weights in all these steps, in float64."""
    weights = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=1.0, betas=(beta1, 0.99), eps=1e-8)
    for gradient in all_gradients:
        weights.grad = gradient.double()
        optimizer.step()
    return -weights.detach()


# ---- what is sent ----------------------------------------------------------------------------------------


def test_two_steps_by_hand():
    ours = compressor(4)
    # Adam's first update is the sign of the gradient; that of the largest gradient is worth most.
    message = ours.select([torch.tensor([1.0, -4.0, 2.0, 0.0])], 1, FINITE)
    torch.testing.assert_close(decoded(message, count=1, size=4), torch.tensor([0.0, -1, 0, 0]))
    torch.testing.assert_close(ours.residual, torch.tensor([1.0, 0, 1, 0]))
    # Mean squares after the second step: (0.99 * old + new) / 1.99, and their roots 2.241, 2.910, 1.455, 0.
    message = ours.select([torch.tensor([3.0, 1.0, 0.5, 0.0])], 2, FINITE)
    # Waiting: 1 + 3 / 2.241 = 2.338, 1 / 2.910 = 0.344, 1 + 0.5 / 1.455 = 1.344, 0; worth: 3.50, 0.59, 1.62, 0.
    sent = decoded(message, count=2, size=4)
    assert sent.tolist() == [2.25, 0, 1.375, 0]  # with three bits behind the first
    torch.testing.assert_close(sent + ours.residual, torch.tensor([2.3384, 0.3437, 1.3436, 0]), rtol=0, atol=1e-3)


def test_nothing_is_lost_and_nothing_added_to_the_bit():
    size, all_gradients = 1000, gradients(1000, 20)
    ours = compressor(size)
    for gradient in all_gradients:
        keeps_all = compressor(size)
        keeps_all.load_state_dict(ours.state_dict())
        keeps_all.select([gradient.clone()], 0, FINITE)
        message = ours.select([gradient.clone()], 37, FINITE)
        assert torch.equal(decoded(message, count=37, size=size) + ours.residual, keeps_all.residual)


@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_what_was_sent_and_what_waits_add_up_to_adam(beta1, monkeypatch):
    size, all_gradients = 1000, gradients(1000, 30)
    ours, sent = compressor(size, beta1=beta1), torch.zeros(1000, dtype=torch.float64)
    for gradient in all_gradients:
        count = 20 if beta1 == 0 else 0  # with momentum, what is sent is masked
        sent += decoded(ours.select([gradient.clone()], count, FINITE), count=count, size=size)
    torch.testing.assert_close(sent + ours.residual, adam(size, all_gradients, beta1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_sending_all_is_adam(beta1):
    size, all_gradients = 500, gradients(500, 10)
    ours, sent = compressor(size, beta1=beta1), torch.zeros(500, dtype=torch.float64)
    for gradient in all_gradients:
        sent += decoded(ours.select([gradient.clone()], size, FINITE), count=size, size=size)
    # What rounding left out of a message was sent with the next one, so only the last one's is missing.
    dense = adam(size, all_gradients, beta1)
    torch.testing.assert_close(sent + ours.residual, dense, rtol=1e-5, atol=1e-4)
    assert ours.residual.abs().max() < 4 * ROUNDING


def test_momentum_of_what_is_sent_is_forgotten_and_of_what_waits_is_kept():
    ours = compressor(2, beta1=0.5)
    ours.select([torch.tensor([8.0, 1.0])], 1, FINITE)
    assert ours.exp_avg.tolist() == [0, 0.5]
    ours.select([torch.tensor([0.0, 0.0])], 0, FINITE)
    # Adam's mean of (1, 0) at beta1 = 0.5 is 1/3, its root of the mean square sqrt(0.99 / 1.99); the sent entry rests.
    torch.testing.assert_close(ours.residual, torch.tensor([0, 1 + (1 / 3) / (0.99 / 1.99) ** 0.5]))


def test_worth_is_between_the_update_and_what_the_loss_falls_by():
    ours = compressor(3)
    ours.select([torch.tensor([0.01, 0.1, 1.0])], 0, FINITE)
    ours.residual[:] = torch.tensor([20.0, 8.0, 1.0])
    ours.exp_avg_sq[:] = torch.tensor([1e-4, 1e-2, 1.0])
    # Worth 20 * 0.1, 8 * 0.316 and 1, where the largest update is the first and the largest fall of the loss the last.
    message = ours.select([torch.zeros(3)], 1, torch.tensor(False))
    assert decoded(message, count=1, size=3).tolist() == [0, 8, 0]


@pytest.mark.slow
def test_starved_entries_are_sent_in_the_end():
    ours, sent = compressor(100), torch.zeros(100)
    gradient = torch.tensor([1.0] * 50 + [0.1] * 50)
    for _ in range(1000):
        sent += decoded(ours.select([gradient.clone()], 1, FINITE), count=1, size=100)
    assert (sent > 0).all()


def test_entries_too_large_for_a_message_are_sent_in_parts():
    ours = compressor(2)
    ours.residual[0] = 1000.0
    parts = [decoded(ours.select([torch.zeros(2)], 2, FINITE), count=2, size=2)[0].item() for _ in range(4)]
    assert parts == [448, 448, 104, 0]


def test_gradients_are_clipped_to_the_norm_of_one_rank():
    clipped, free = compressor(2, clip=5.0), compressor(2)
    clipped.select([torch.tensor([30.0, 40.0])], 0, FINITE)
    free.select([torch.tensor([3.0, 4.0])], 0, FINITE)
    torch.testing.assert_close(clipped.exp_avg_sq, free.exp_avg_sq)
    clipped.select([torch.tensor([0.0, 0.0])], 0, FINITE)
    assert clipped.residual.isfinite().all()


def test_a_gradient_that_is_not_finite_leaves_no_trace():
    for beta1 in (0.0, 0.9):
        ours, other = compressor(50, beta1=beta1), compressor(50, beta1=beta1)
        first, second = gradients(50, 2)
        for each in (ours, other):
            each.select([torch.full((50,), torch.nan)], 5, torch.tensor(False))
            each.select([first.clone()], 5, FINITE)
        other.select([torch.full((50,), torch.inf)], 0, torch.tensor(False))
        assert torch.equal(ours.select([second.clone()], 5, FINITE), other.select([second.clone()], 5, FINITE))


# ---- messages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 4, 7, 1003])
@pytest.mark.parametrize("size", [2000, 65_536, 65_537, 300_000])
def test_a_message_holds_its_entries_in_three_bytes_each(count, size):
    indices = torch.randperm(size, generator=torch.Generator().manual_seed(count))[:count].sort().values
    values = torch.linspace(-448, 448, count).to(SENT_AS)
    message = pack(indices, values, size)
    assert 0 <= len(message) - 3 * count - 4 * -(-size // 65_536) < 4
    assert len(message) % 4 == 0
    expected = torch.zeros(size).index_put((indices,), values.float())
    assert torch.equal(decoded(message, message, count=count, size=size), expected)


def test_messages_always_have_the_same_number_of_different_entries():
    ours = compressor(1000)
    for gradient in [torch.zeros(1000), torch.ones(1000), *gradients(1000, 3)]:
        ours.residual[gradient == 0] += 1e-3  # an entry of no worth, but one that can be seen
        message = ours.select([gradient.clone()], 25, FINITE)
        assert message.shape == (80,)
        assert decoded(message, count=25, size=1000).count_nonzero() == 25


def test_the_mean_of_all_messages_is_made_in_their_order():
    size, ranks = 300, [compressor(300) for _ in range(3)]
    messages = [
        each.select([gradient.clone()], 100, FINITE) for each, gradient in zip(ranks, gradients(size, 3), strict=True)
    ]
    exact = sum(decoded(message, count=100, size=size).double() for message in messages) / 3
    update = decoded(*messages, count=100, size=size)
    torch.testing.assert_close(update.double(), exact, rtol=1e-6, atol=1e-7)
    assert torch.equal(decoded(*messages, count=100, size=size), update)
    first, second = (decoded(*pair, count=100, size=size) for pair in (messages[:2], messages[1::-1]))
    assert torch.equal(first, second)


def test_a_restored_state_goes_on_to_the_bit():
    for beta1 in (0.0, 0.5):
        ours, all_gradients = compressor(400, beta1=beta1), gradients(400, 8)
        for gradient in all_gradients[:4]:
            ours.select([gradient.clone()], 10, FINITE)
        saved = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
        resumed = compressor(400, beta1=beta1)
        resumed.load_state_dict(saved)
        for gradient in all_gradients[4:]:
            assert torch.equal(
                ours.select([gradient.clone()], 10, FINITE), resumed.select([gradient.clone()], 10, FINITE)
            )
        assert all(torch.equal(tensor, resumed.state_dict()[name]) for name, tensor in ours.state_dict().items())


def test_a_state_that_does_not_fit_is_refused():
    with pytest.raises(RuntimeError, match="residual"):
        compressor(5).load_state_dict(compressor(6).state_dict())
    with pytest.raises(RuntimeError, match="exp_avg"):
        compressor(5, beta1=0.5).load_state_dict(compressor(5).state_dict())


class Operations(TorchDispatchMode):
    """Notes the names of the operations called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.names.add(function._schema.name)
        return function(*arguments, **(keywords or {}))


def test_nothing_asks_a_device_for_values_or_copies_numbers_to_it():
    """Tensors without values refuse to tell any: what works on them can be captured."""
    device = torch.device("meta")
    ours = Compressor(300_000, dataclasses.replace(ADAM, beta1=0.5), 1.0, device)
    finite, factor = torch.ones((), dtype=torch.bool, device=device), torch.ones((), device=device)
    for given in ([], [factor]):
        with Operations() as called:
            message = ours.select([torch.empty(300_000, device=device)], 3000, finite, *given)
            indices, updates = mean_of(torch.stack([message, message]), 3000, torch.empty(300_000, device=device))
        assert message.shape == (4 * 5 + 3 * 3000,)
        assert indices.shape == updates.shape == (6000,)
        assert "aten::lift_fresh" not in called.names  # a tensor made of a number, which a GPU would have to wait for


# ---- selection -------------------------------------------------------------------------------------------


def vectors(size):
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(size, generator=generator).abs()
    layers = normal * torch.logspace(-6, 2, 16).repeat_interleave(-(-size // 16))[:size]
    periodic = normal * (torch.arange(size) % 512 == 0)
    few = torch.zeros(size)
    few[torch.randperm(size, generator=generator)[:50]] = 1.0
    return {"normal": normal, "layers": layers, "periodic": periodic, "few": few, "equal": torch.ones(size)}


@pytest.mark.parametrize("kind", ["normal", "layers", "periodic", "few", "equal"])
@pytest.mark.parametrize("count", [1, 1000, 10_000, 250_001, 1_000_003])
def test_exactly_the_largest_are_selected(kind, count):
    vector = vectors(1_000_003)[kind]
    found = largest(vector, count)
    assert len(found.unique()) == count
    assert torch.equal(vector[found].sort(descending=True).values, vector.topk(count).values)
    assert torch.equal(largest(vector, count), found)


@pytest.mark.parametrize("kind", ["normal", "layers"])
@pytest.mark.parametrize(("count", "most"), [(1000, 1.75), (10_000, 1.2)])
def test_the_sampled_threshold_lets_through_a_few_more_than_are_wanted(kind, count, most, monkeypatch):
    passed = []
    above = compression.above
    monkeypatch.setattr(compression, "above", lambda *given: passed.append(above(*given)) or passed[-1])
    largest(vectors(1_000_003)[kind], count)
    assert len(passed) == 1
    assert count <= len(passed[0]) <= most * count


# ---- warmup ---------------------------------------------------------------------------------------------


def test_the_ratio_falls_by_quarters_to_its_end():
    shares = [share_to_send(0.01, 3000, since) for since in (0, 999, 1000, 2000, 2999, 3000, 10**9)]
    assert shares == [1 / 4, 1 / 4, 1 / 16, 1 / 64, 1 / 64, 0.01, 0.01]


@pytest.mark.parametrize("ratio", [1.0, 0.25, 0.2, 0.0625, 0.01, 0.001])
@pytest.mark.parametrize("images", [0, 1, 1000])
def test_the_ratio_never_rises_and_is_never_below_the_last(ratio, images):
    ratios = [share_to_send(ratio, images, since) for since in range(0, 1100, 11)]
    assert ratios == sorted(ratios, reverse=True)
    assert min(ratios) == ratios[-1] == ratio
    assert len(set(ratios)) <= 6


# ---- training --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_fit_what_adam_fits_sending_a_hundredth():
    generator = torch.Generator().manual_seed(0)
    size, halves = 100, []
    truth = torch.randn(size, generator=generator)
    for _ in range(2):
        inputs = torch.randn(200, size, generator=generator) * torch.logspace(-1, 0, size)
        halves.append((inputs, inputs @ truth))
    weights, ranks = torch.zeros(size), [compressor(size) for _ in range(2)]
    for step in range(1500):
        messages = [
            ours.select([inputs.T @ (inputs @ weights - targets) / 200], 1, FINITE)
            for ours, (inputs, targets) in zip(ranks, halves, strict=True)
        ]
        weights -= 0.02 * 0.998**step * decoded(*messages, count=1, size=size)
    assert (weights - truth).norm() < 0.05 * truth.norm()


def test_updates_are_made_with_the_configured_epsilon():
    ours = compressor(2, epsilon=4.0)
    ours.select([torch.tensor([1.0, -4.0])], 0, FINITE)
    torch.testing.assert_close(ours.residual, torch.tensor([1 / 5, -4 / 8]))  # g / (|g| + epsilon), at the first step
