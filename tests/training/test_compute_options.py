"""Every way of computing a step gives the same step: micro-batches, jvp, activation checkpointing, half precision."""

import dataclasses
import math
from functools import cache

import pytest
import torch

from pggan.config import Precision
from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses.logistic import Logistic
from pggan.losses.relativistic import Relativistic
from pggan.networks import activation
from pggan.networks.convolution import DIRECT, IM2COL, NATIVE, WINOGRAD
from pggan.networks.numerics import ComputeOptions
from pggan.optim.state import INIT_SCALE, new_state
from pggan.training import compute_options
from pggan.training.compute_options import configure_process, precision_on, set_float32
from pggan.training.op_counter import OpCounter
from pggan.training.step import Trainer
from tests.definitions import ADAM, WGAN_GP, adds_up_in_half, before_step, variant

CPU = torch.device("cpu")
LOSSES = {
    "wgan_gp": WGAN_GP,
    "logistic": Logistic(gamma=1.0, reg_interval=1),
    "relativistic": Relativistic(gamma=1.0, reg_interval=1),
}
ARCHITECTURE = variant(resolution=32, num_classes=2, latent_size=8, fmap_base=64, fmap_max=16, noise=True)
HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


class PreciseRng(StepRng):
    """The same random numbers in float64."""

    def normal(self, purpose, *shape):
        return super().normal(purpose, *shape).double()

    def uniform(self, purpose, *shape):
        return super().uniform(purpose, *shape).double()


def take_steps(options, loss="wgan_gp", count=2, dtype=torch.float64, batch=16, spoil=None):
    """The state, the metrics and the first gradients (D, then G) after `count` steps in the middle of a fade."""
    state = new_state(ARCHITECTURE, ADAM, 0, CPU, half=options.dtype is torch.float16)
    gradients = []
    for trainable in (state.d, state.g):
        trainable.network.to(dtype)
        before_step(
            trainable.optimizer,
            lambda trainable=trainable: gradients.append(
                torch.cat([weight.grad.flatten().clone() for weight in trainable.weights_in_use])
            ),
        )
    state.g_ema.to(dtype)
    trainer = Trainer(state, LOSSES[loss], options, reset_at_phase=False)
    phase, metrics = Phase(0, 16, True, 0.4, 0, 1000, batch, 0.001, 0.001, 1), {}
    for step in range(count):
        images = torch.rand(batch, 3, 16, 16, generator=torch.Generator().manual_seed(step)) * 2 - 1
        if step == spoil:
            images[0, 0, 0, 0] = torch.nan
        one_hot = torch.eye(2, dtype=dtype)[torch.arange(batch) % 2]
        reals = Reals(images.to(dtype), one_hot, one_hot.flip(1))
        rng = (PreciseRng if dtype is torch.float64 else StepRng)(0, state.images, CPU)
        metrics = trainer.step(phase, reals, rng, 0.9)
    return state, metrics, gradients[:2]


def assert_same(one, other, tolerance):
    for found, expected in ((one.g.network, other.g.network), (one.d.network, other.d.network)):
        for (name, weight), right in zip(found.named_parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(weight, right, atol=tolerance, rtol=0, msg=name)


@cache
def plain_steps(loss):
    return take_steps(ComputeOptions(method=NATIVE), loss)


def name_of(options):
    fields = [field for field in dataclasses.fields(options) if field.name != "method_table"]
    changed = {field.name: getattr(options, field.name) for field in fields}
    changed = {name: value for name, value in changed.items() if value not in (None, False)}
    return ",".join(f"{name}={getattr(value, 'name', value)}" for name, value in changed.items())


OF_EVERY_LOSS = [
    ComputeOptions(micro_batch_size=12),  # parts of 12 and 4
    ComputeOptions(jvp=True),
    ComputeOptions(jvp=True, micro_batch_size=8),
    ComputeOptions(activation_checkpointing=True, method=WINOGRAD),
]
OF_LAYERS = [  # which do not know the loss; that of WGAN-GP differentiates them twice
    ComputeOptions(micro_batch_size=4),
    ComputeOptions(activation_checkpointing=True),
    ComputeOptions(method=DIRECT),
    ComputeOptions(method=IM2COL),
    ComputeOptions(method=IM2COL, jvp=True),
    ComputeOptions(method=WINOGRAD),
    ComputeOptions(method=WINOGRAD, jvp=True),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "options"),
    [
        *((loss, options) for loss in LOSSES for options in OF_EVERY_LOSS),
        *(("wgan_gp", options) for options in OF_LAYERS),
    ],
    ids=lambda value: value if isinstance(value, str) else name_of(value),
)
def test_every_way_of_computing_gives_the_same_step(loss, options):
    usual, expected, _ = plain_steps(loss)
    other, metrics, _ = take_steps(options, loss)
    assert_same(other, usual, 1e-9)
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        # Micro-batches give the same images in another order.
        torch.testing.assert_close(metrics[name].double().mean(), value.double().mean(), atol=1e-9, rtol=1e-6, msg=name)


@pytest.mark.slow
def test_activation_checkpointing_needs_less_memory():
    peaks = []
    for checkpointing in (False, True):
        with OpCounter() as count:
            take_steps(ComputeOptions(activation_checkpointing=checkpointing), count=1, dtype=torch.float32, batch=64)
        peaks.append(count.peak)
    assert peaks[1] < 0.9 * peaks[0]


# ---- half precision --------------------------------------------------------------------------------------
#
# How far may gradients in half precision be from those in float32?  One rounding changes a number by a random share of
# at most u: 2^-11 in float16, 2^-8 in bfloat16.  Sums are accumulated in float32, except that processors that do not
# multiply in half precision round the gradient of a weight after each of N images: the N partial sums have N / 2 times
# the variance of the whole, so do their roundings.  Some processors round all partial sums of a product: K terms make
# K / 2 roundings, of up to 16 maps times 4x4 in a result or its gradient, of N images of 16x16 in that of a kernel.
# Independent roundings add in squares, and equalised layers neither enlarge nor shrink them.


def of_products(dtype):
    """The roundings within a layer's result, or its gradient."""
    return 16 * 4 * 4 / 2 if adds_up_in_half(dtype) else 0


def of_kernel(dtype, count):
    """The roundings within the gradient of a kernel, of `count` images."""
    return count * 16 * 16 / 2 if adds_up_in_half(dtype) else count / 2


def d_roundings(dtype):
    """Of the gradient of D.

    It has 8 layers in half precision here (two from_rgb, for the fade; two per block, two in the head), each of which
    rounds its kernel, its result and its gradient; in a penalty's second derivative all once more; N is 32.
    """
    return 2 * 8 * (3 + 2 * of_products(dtype)) + of_kernel(dtype, 32)


def g_roundings(dtype):
    """Of the gradient of G.

    It has 8 layers, too (two in the stem, two per block, two to_rgb), which also round the pixel norm and its gradient;
    then come those of D, N is 16.  Adam's first update moves D's weights by 0.001 times the signs of its gradient, of
    which a share below u differs: that is less than one rounding of a weight.
    """
    return 8 * (5 + 2 * of_products(dtype)) + 8 * (3 + 2 * of_products(dtype)) + of_kernel(dtype, 16)


def kinks(layers, dtype):
    """What leaky ReLU adds, squared and in units of u: where a result is within its error of 0, its slope may differ.

    Of normal numbers with a relative error e, a share e / pi has another sign; e is sqrt(3 l) u after l layers.  There
    the slope differs by 1 - 0.2, beside a mean square of (1 + 0.2^2) / 2.  So the share of the gradient that is wrong
    grows with sqrt(u), and it depends on the processor which few numbers these are: it makes most of the difference.
    """
    each = 3 + of_products(dtype)
    return sum(0.8**2 / 0.52 * math.sqrt(each * layer) / math.pi for layer in range(1, layers + 1))


@cache
def float32_gradients(loss, slope):
    """Those of D and G; `slope`: of the leaky ReLU, as it is set."""
    assert slope == activation.LEAKY_SLOPE
    return take_steps(ComputeOptions(), loss, count=1, dtype=torch.float32)[2]


def relative_errors(options, loss):
    """Of the gradients of D and G."""
    expected = float32_gradients(loss, activation.LEAKY_SLOPE)
    state, metrics, found = take_steps(options, loss, count=1, dtype=torch.float32)
    assert metrics["D/skipped"] == metrics["G/skipped"] == 0
    assert all(parameter.dtype is torch.float32 for parameter in state.g.network.parameters())
    scale = INIT_SCALE if options.dtype is torch.float16 else 1.0
    return [((half / scale - full).norm() / full.norm()).item() for half, full in zip(found, expected, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("jvp", [False, True])
@HALF
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_in_half_precision_are_those_in_float32_to_the_rounding_of_each_layer(monkeypatch, loss, dtype, jvp):
    monkeypatch.setattr(activation, "LEAKY_SLOPE", 1.0)  # without kinks
    u = torch.finfo(dtype).eps / 2
    of_d, of_g = relative_errors(ComputeOptions(dtype=dtype, jvp=jvp), loss)
    assert of_d < math.sqrt(d_roundings(dtype)) * u
    assert of_g < math.sqrt(g_roundings(dtype)) * u


@HALF
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_in_half_precision_point_where_those_in_float32_do(loss, dtype):
    u = torch.finfo(dtype).eps / 2
    of_d, of_g = relative_errors(ComputeOptions(dtype=dtype), loss)
    assert of_d < math.sqrt(kinks(8, dtype) * u + d_roundings(dtype) * u**2)
    assert of_g < math.sqrt(kinks(8 + 8, dtype) * u + g_roundings(dtype) * u**2)


def test_scores_penalty_and_losses_stay_in_float32():
    _, metrics, _ = take_steps(ComputeOptions(dtype=torch.bfloat16), count=1, dtype=torch.float32)
    assert {value.dtype for value in metrics.values()} == {torch.float32}
    assert len(set(metrics["scores/reals"].tolist())) > 8  # bfloat16 would have rounded them together


def test_the_weights_are_the_same_whatever_power_of_two_scales_the_loss():
    states = []
    for scale in (1.0, 2.0**10):
        state = new_state(ARCHITECTURE, ADAM, 0, CPU, half=True)
        for trainable in (state.g, state.d):
            trainable.scale.fill_(scale)
        phase = Phase(0, 16, False, 1.0, 0, 1000, 4, 0.001, 0.001, 1)
        images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
        reals = Reals(images, *[torch.eye(2)[[0, 1, 0, 1]]] * 2)
        metrics = Trainer(state, WGAN_GP, ComputeOptions()).step(phase, reals, StepRng(0, 0, CPU), 0.9)
        states.append((state, metrics["D/gradient_norm"]))
    assert_same(states[0][0], states[1][0], 1e-7)
    torch.testing.assert_close(states[0][1], states[1][1])


@pytest.mark.slow
def test_an_overflow_halves_the_scale_skips_the_update_and_is_counted():
    options = ComputeOptions(dtype=torch.float16)
    state, metrics, _ = take_steps(options, count=2, dtype=torch.float32, spoil=1)
    one, _, _ = take_steps(options, count=1, dtype=torch.float32)
    assert metrics["D/skipped"] == 1
    assert state.d.skipped == 1
    assert state.d.scale == INIT_SCALE / 2
    assert_same(dataclasses.replace(state, g=one.g), one, 0)  # D did not move
    assert math.isfinite(sum(p.sum().item() for p in state.g.network.parameters()))


def test_an_update_that_is_not_finite_is_skipped_in_float32_too():
    state, metrics, _ = take_steps(ComputeOptions(), count=3, dtype=torch.float32, spoil=1)
    assert metrics["D/skipped"] == 0  # the last one was valid again
    assert state.d.skipped == 0
    for name, tensors in state.state_dict().items():
        assert all(torch.isfinite(tensor).all() for tensor in tensors.values()), name
    moments = [moment["step"] for moment in state.d.optimizer.state.values()]
    assert {step.item() for step in moments} == {2.0}  # of three updates


@pytest.fixture
def torch_settings():
    """What `configure_process` sets in torch, put back afterwards."""
    kinds = torch.backends.cuda.matmul, torch.backends.cudnn
    before, benchmark = [kind.allow_tf32 for kind in kinds], torch.backends.cudnn.benchmark
    yield kinds
    for kind, value in zip(kinds, before, strict=True):
        kind.allow_tf32 = value
    torch.backends.cudnn.benchmark = benchmark
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


def test_float32_products_are_shortened_and_in_full_again(torch_settings):
    """By both ways of reading it: one of them raises when the other one was set."""
    for precision, expected in ((Precision.tf32, True), (Precision.fp32, False), (Precision.bf16, False)):
        set_float32(torch.device("cuda"), precision)
        assert [kind.allow_tf32 for kind in torch_settings] == [expected] * 2
        assert (torch.get_float32_matmul_precision() == "high") == expected
        of_products = torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn
        assert [(kind.fp32_precision == "tf32") for kind in of_products] == [expected] * 3


@pytest.mark.parametrize(("supported", "expected"), [(True, Precision.bf16), (False, Precision.fp16)])
def test_auto_is_a_precision_that_the_device_has(monkeypatch, supported, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported or including_emulation)
    assert precision_on(torch.device("cuda"), Precision.auto) is expected
    assert precision_on(CPU, Precision.auto) is Precision.fp32
    for given in (Precision.fp32, Precision.tf32, Precision.bf16, Precision.fp16):
        assert precision_on(torch.device("cuda"), given) is given


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_deterministic_process_chooses_no_algorithm_by_timing(torch_settings, monkeypatch, deterministic):
    monkeypatch.setattr(compute_options.os, "environ", environment := {})
    configure_process(torch.device("cuda"), Precision.fp32, deterministic=deterministic)
    assert torch.backends.cudnn.benchmark != deterministic
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert ("CUBLAS_WORKSPACE_CONFIG" in environment) == deterministic
    assert ("TORCHINDUCTOR_DETERMINISTIC" in environment) == deterministic
