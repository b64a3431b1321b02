"""What CUDA does after a convolution: the derivatives without kernels, and what happens where kernels fail."""

import gc
import os
import subprocess
import sys
import weakref
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from pggan import networks
from pggan.networks import fused
from pggan.networks.activation import BiasAndActivation, activate, activate_and_normalize, pixel_norm
from pggan.networks.fade import Blend
from pggan.networks.networks import Discriminator, Generator
from tests.networks.naive import TINY, normal, ready

ROOT = Path(__file__).parents[2]
DOUBLE = torch.float64


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: it comes with torch for CUDA")
def test_the_kernels_are_their_definition_in_tritons_interpreter():
    tests = ROOT / "tests" / "networks" / "interpreted_kernels.py"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(tests)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def notices(monkeypatch):
    """What is logged about kernels, in a process of which the CPU is the device that has them."""
    lines, kernels = [], fused.Kernels()
    kernels.log = lines.append
    monkeypatch.setattr(fused, "KERNELS", kernels)
    monkeypatch.setattr(fused, "DEVICE", "cpu")
    return lines


# ---- without kernels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 3, 2, 1), (2, 3)])
def test_all_derivatives_of_bias_and_activation_are_those_of_finite_differences(shape):
    x, bias = normal(*shape, dtype=DOUBLE).requires_grad_(), normal(3, seed=1, dtype=DOUBLE).requires_grad_()
    found = activate(x, bias)
    torch.testing.assert_close(found, F.leaky_relu(x + bias.view(-1, *[1] * (len(shape) - 2)), 0.2))
    assert torch.autograd.gradcheck(BiasAndActivation.apply, (x, bias))
    assert torch.autograd.gradgradcheck(BiasAndActivation.apply, (x, bias))
    tangent = normal(*shape, seed=2, dtype=DOUBLE)
    _, forward = torch.func.jvp(lambda x: activate(x, bias.detach()), (x.detach(),), (tangent,))
    torch.testing.assert_close(forward, torch.where(found > 0, tangent, 0.2 * tangent).detach())


def test_activation_and_norm_add_a_bias_in_place():
    x, bias = normal(2, 3, 2, 2, dtype=DOUBLE), normal(3, seed=1, dtype=DOUBLE)
    found = activate_and_normalize(other := x.clone(), bias)
    torch.testing.assert_close(found, pixel_norm(F.leaky_relu(x + bias[:, None, None], 0.2)))
    assert found.data_ptr() == other.data_ptr()
    leaves = x.requires_grad_(), bias.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, bias: activate_and_normalize(x.clone(), bias), leaves)


def test_with_activation_checkpointing_what_was_saved_is_freed_at_once(notices):
    x, bias = normal(2, 3, 4, 4).requires_grad_(), normal(3, seed=1).requires_grad_()
    nodes = []

    def block(x):
        y = activate(1 * x, bias)
        nodes.append(weakref.ref(y.grad_fn))
        return activate(y * y, bias)

    gc.disable()
    try:
        (slope,) = torch.autograd.grad(checkpoint(block, x, use_reentrant=False).sum(), x, create_graph=True)
        slope.square().sum().backward()
        del slope
        assert [node() for node in nodes] == [None] * len(nodes)  # of the forward pass and of its repetitions
    finally:
        gc.enable()


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_all_derivatives_of_a_blend_are_those_of_finite_differences(alpha):
    weight = torch.tensor(alpha, dtype=DOUBLE)
    old, new = (normal(2, 3, 2, 2, seed=seed, dtype=DOUBLE).requires_grad_() for seed in (0, 1))
    torch.testing.assert_close(Blend.apply(old, new, weight), (1 - weight) * old + weight * new)

    def blend(old, new):
        return Blend.apply(old, new, weight)

    assert torch.autograd.gradcheck(blend, (old, new), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(blend, (old, new))


# ---- kernels that fail -----------------------------------------------------------------------------------


class Failing:
    """A kernel that fails when it is started, and counts how often that was tried."""

    def __init__(self, error):
        self.error, self.tried = error, 0

    def __getitem__(self, grid):
        self.tried += 1
        raise self.error


def gradients_of_both():
    """Of a small G and a small D, with images between them, as one vector."""
    g, d = ready(Generator, TINY), ready(Discriminator, TINY)
    images = g(normal(4, TINY.latent_size), None, 8, 0.5)
    scores, _ = d(images, 8, 0.5)
    (slope,) = torch.autograd.grad(scores.sum(), images, create_graph=True)
    (slope.square().sum() + scores.sum()).backward()
    return torch.cat([w.grad.flatten() for network in (g, d) for w in network.weights if w.grad is not None])


def test_after_a_kernel_has_failed_nothing_is_different_but_one_line(notices, monkeypatch):
    failing = Failing(RuntimeError("no such architecture\nmore about it"))
    monkeypatch.setattr(fused, "kernel", lambda name: failing)
    found = gradients_of_both()
    assert notices == ["Layers are calculated without fused kernels, which is slower: no such architecture"]
    assert failing.tried == 1
    monkeypatch.setattr(fused, "DEVICE", "cuda")
    plain = gradients_of_both()
    # The orders of sums differ, of 9 * 10 terms in each of some 12 layers, on the way forth, back and forth again.
    assert (found - plain).norm() <= 3 * 12 * 90 * 2**-24 * plain.norm()


def test_without_triton_there_are_no_kernels(notices, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "pggan.networks.triton_kernels", raising=False)
    monkeypatch.delattr(networks, "triton_kernels", raising=False)
    fused.kernel.cache_clear()
    torch.testing.assert_close(activate(torch.tensor([[-1.0, 1.0]]), torch.zeros(2)), torch.tensor([[-0.2, 1.0]]))
    assert len(notices) == 1
    assert "triton" in notices[0]


def test_a_kernel_that_fails_backwards_leaves_the_same_gradient(notices, monkeypatch):
    """What the forward kernel saved is what PyTorch's operations need."""
    x, bias, gradient = normal(2, 3, 4, 4), normal(3, seed=1), normal(2, 3, 4, 4, seed=2)
    x, bias = x.contiguous(memory_format=torch.channels_last).requires_grad_(), bias.requires_grad_()

    def forward(x, bias, slope, epsilon):
        z = F.leaky_relu(x + bias[:, None, None], slope)
        scale = torch.rsqrt(z.square().mean(1, keepdim=True) + epsilon)
        x.copy_(z * scale)
        return scale

    monkeypatch.setattr(fused, "activate_and_normalize", forward)
    monkeypatch.setattr(fused, "kernel", lambda name: Failing(RuntimeError("spilled")))
    found = torch.autograd.grad(activate_and_normalize(x.clone(), bias), (x, bias), gradient)
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, bias)]
    exact = torch.autograd.grad(
        pixel_norm(F.leaky_relu(wide[0] + wide[1][:, None, None], 0.2)), wide, gradient.double()
    )
    for one, other in zip(found, exact, strict=True):  # sums of 3 features, then of 32 pixels
        torch.testing.assert_close(one.double(), other, rtol=0, atol=50 * 2**-24 * 32 * float(other.abs().max()))
    assert len(notices) == 1


@pytest.mark.parametrize(
    "error",
    [
        subprocess.CalledProcessError(1, ["/usr/bin/gcc", "/tmp/tmpx/main.c", "-O3", *["-I/usr/include"] * 50]),
        RuntimeError("Failed to find C compiler. Please specify via CC environment variable"),
    ],
)
def test_a_missing_compiler_is_named_with_the_remedy(notices, monkeypatch, error):
    """What is likeliest to go wrong on a new machine: Triton compiles what launches a kernel, with Python's headers."""
    monkeypatch.setattr(fused, "kernel", lambda name: Failing(error))
    activate(normal(2, 3), normal(3))
    (line,) = notices
    assert line.endswith("Triton needs a C compiler and Python's headers (apt-get install gcc python3-dev)")


def test_a_long_reason_is_cut(notices, monkeypatch):
    monkeypatch.setattr(fused, "kernel", lambda name: Failing(RuntimeError("no such architecture " * 50)))
    activate(normal(2, 3), normal(3))
    (line,) = notices
    assert len(line) < 200
    assert line.endswith(" …")


def test_too_little_memory_is_no_fault_of_the_kernels(notices, monkeypatch):
    monkeypatch.setattr(fused, "kernel", lambda name: Failing(RuntimeError("Triton Error [CUDA]: out of memory")))
    with pytest.raises(torch.OutOfMemoryError):
        activate(normal(2, 3), normal(3))
    assert fused.KERNELS.working
    assert not notices


def test_fake_tensors_start_no_kernel(notices, monkeypatch):
    failing = Failing(AssertionError)
    monkeypatch.setattr(fused, "kernel", lambda name: failing)
    with FakeTensorMode():
        x, bias = torch.empty(2, 3, 4, 4).requires_grad_(), torch.empty(3).requires_grad_()
        y = activate_and_normalize(activate(x, bias).clone(), bias)
        assert [gradient.shape for gradient in torch.autograd.grad(y.sum(), (x, bias))] == [x.shape, bias.shape]
    assert failing.tried == 0


def test_what_the_kernels_cannot_process_they_are_not_given(notices, monkeypatch):
    failing = Failing(AssertionError)
    monkeypatch.setattr(fused, "kernel", lambda name: failing)
    wide = fused.WIDEST + 1
    for x in (normal(2, 3, dtype=DOUBLE), normal(2, wide)):
        torch.testing.assert_close(activate(x, torch.zeros(x.shape[1])), F.leaky_relu(x, 0.2))
    activate_and_normalize(normal(2, 3, 4, 4), torch.zeros(3))  # its features do not lie side by side
    assert failing.tried == 0
    assert fused.KERNELS.working
