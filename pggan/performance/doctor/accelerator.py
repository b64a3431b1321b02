"""The abilities of the device that training would use, tried on it."""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from shutil import which

import torch
import torch.distributed as dist
from torch import Tensor

from pggan.config import Precision, R1Config, default_trainer
from pggan.core.batch import Reals
from pggan.core.devices import require_kernels
from pggan.core.errors import UserError
from pggan.core.formatting import three_digits
from pggan.core.rng import StepRng
from pggan.ops import fused
from pggan.ops.bilateral import SIGMA, bilateral
from pggan.ops.elementwise import activate, activate_and_normalize, fade
from pggan.performance.bench.steps import phase_of
from pggan.performance.bench.variants import TrainerVariant
from pggan.performance.doctor.finding import Finding, Verdict
from pggan.training.compute_options import DTYPES, precision_on, set_float32
from pggan.training.cuda_graphs import capture
from pggan.training.device_rates import matmul_rate

GIB = 2**30
SIDE = 64  # of the matmul whose result is compared
PIXELS = 256  # of the maps that fused kernels are tried on
DRIVER = Path("/proc/driver/nvidia/version")
TINY_MODEL = replace(default_trainer().model, fmap_base=128, fmap_max=16)
LOSS = R1Config(name="logistic", gamma=10.0, reg_interval=1)  # with a gradient penalty, so D is differentiated twice


def gpu(device: torch.device) -> Finding:
    """The GPUs that PyTorch finds."""
    if device.type == "mps":
        return Finding("Apple silicon, through MPS")
    if torch.cuda.is_available():
        try:
            for index in range(torch.cuda.device_count()):
                require_kernels(index, f"GPU {index}")
        except UserError as error:
            return Finding(error.problem, Verdict.limited, error.remedy)
        properties = torch.cuda.get_device_properties(0)
        capability, driver = f"{properties.major}.{properties.minor}", driver_version()
        return Finding(f"{torch.cuda.device_count()} x {properties.name}, capability {capability}, driver {driver}")
    if not DRIVER.exists() and which("nvidia-smi") is None:
        return Finding("PyTorch finds none: training runs on the CPU", Verdict.none)
    built = torch.version.cuda is not None
    remedy = "Update the driver, or install a PyTorch for its CUDA." if built else "Install PyTorch's build for CUDA."
    return Finding("there is a driver for one, but PyTorch finds none", Verdict.limited, remedy)


def driver_version() -> str:
    """The highest version of CUDA that the driver supports, such as 13.0."""
    number = ctypes.c_int()
    if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)):
        return "unknown"
    return f"for CUDA {number.value // 1000}.{number.value % 1000 // 10}"


def gpu_memory(device: torch.device) -> Finding:
    """The memory of the first GPU."""
    free, total = torch.cuda.mem_get_info(device)
    return Finding(f"{free / GIB:.1f} of {total / GIB:.1f} GiB free")


def matmul(precision: Precision, device: torch.device) -> Finding:
    """A matrix multiplication in `precision`: its error, and the rate of a large one."""
    set_float32(device, precision)
    dtype = DTYPES.get(precision, torch.float32)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(SIDE, SIDE, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    found = (a.to(device, dtype) @ b.to(device, dtype)).double().cpu()
    error = ((found - exact).norm() / (a.double().norm() * b.double().norm())).item()
    # Each factor and the result are rounded once (u); sums of SIDE products are accumulated in float32.
    rounding = 2**-11 if precision is Precision.tf32 else torch.finfo(dtype).eps / 2
    if not error <= 3 * rounding + SIDE * 2**-24:
        wrong = f"matrix products are wrong by {error:.1g}"
        if precision is Precision.fp32:
            return Finding(wrong, Verdict.broken, "Update driver and PyTorch, or train with devices=cpu.")
        return Finding(wrong, Verdict.limited, f"Use another precision than {precision}.")
    side = 512 if device.type == "cpu" else 8192
    rate = matmul_rate(device, precision, dtype, side)
    return Finding(f"{three_digits(rate / 1e9)} GFLOP/s" if rate < 1e12 else f"{three_digits(rate / 1e12)} TFLOP/s")


def cuda_graphs(device: torch.device) -> Finding:
    """A capture, replayed twice."""
    total = torch.zeros((), device=device)

    def work() -> dict[str, torch.Tensor]:
        total.add_(1)
        return {"twice": total * 2}

    work()  # the first launch loads the kernels
    replay, result = capture(work)
    replay()
    replay()
    if result["twice"].item() != 6:
        remedy = "Train with compute.cuda_graphs=off."
        return Finding(f"replays give {result['twice'].item():g} in place of 6", Verdict.limited, remedy)
    return Finding("captured and replayed")


def fused_kernels(device: torch.device) -> Finding:
    """The Triton kernels: their results and gradients beside PyTorch's operations in float64 on the CPU."""
    if find_spec("triton") is None:
        return Finding("no Triton: layers take longer", Verdict.limited, "pip install triton")
    precision = precision_on(device, Precision.auto)
    if (reason := fused.problem()) is not None:
        return Finding(f"not used: {reason}", Verdict.limited, "Training is slower.")
    dtypes = list(dict.fromkeys((torch.float32, DTYPES.get(precision, torch.float32))))
    errors = {dtype: error_of_kernels(dtype, device, images=dtype is dtypes[-1]) for dtype in dtypes}
    for dtype, error in errors.items():
        # A few roundings before and after sums of at most so many numbers, which float32 rounds at every one.
        if not error <= 8 * torch.finfo(dtype).eps / 2 + PIXELS * 2**-24:
            wrong = f"wrong by {error:.1g} in {str(dtype).removeprefix('torch.')}"
            return Finding(wrong, Verdict.broken, "Uninstall triton: training then does without.")
    return Finding("Triton's, equal to PyTorch's operations")


def error_of_kernels(dtype: torch.dtype, device: torch.device, *, images: bool) -> float:
    """The largest error of what kernels calculate for maps of `dtype`, and of gradients, as a share of their norms.

    Args: images: the filter of images, too, which takes seconds to compile.
    """
    generator = torch.Generator().manual_seed(0)
    x, other, g = torch.randn(3, PIXELS // 64, 24, 8, 8, generator=generator).to(dtype)
    bias = torch.randn(24, generator=generator).to(dtype).float()  # rounded alike, or signs could differ
    near = x[:, :3] * SIGMA  # images whose neighbours are near enough to count
    worst = 0.0
    cases: list[tuple[Callable[..., Tensor], list[Tensor]]] = [
        (activate, [x, bias]),
        (activate_and_normalize, [x, bias]),
        (lambda old, new: fade(old, new, torch.tensor(0.3, device=old.device)), [x, other]),
    ]
    if images:
        cases.append((lambda images: bilateral(images, 1), [near]))
    for function, inputs in cases:
        exact = results(function, [one.double() for one in inputs], g.double())
        found = results(function, [one.to(device) for one in inputs], g.to(device))
        for one, right in zip(found, exact, strict=True):
            error: float = ((one.double().cpu() - right).norm() / right.norm()).item()
            if not isfinite(error):
                return error
            worst = max(worst, error)
    return worst


def results(function: Callable[..., Tensor], inputs: list[Tensor], g: Tensor) -> tuple[Tensor, ...]:
    """The result of `function` for `inputs`, and their gradients when that of the result is `g`: its first channels."""
    leaves = [
        (one.contiguous(memory_format=torch.channels_last) if one.ndim == 4 else one).detach().requires_grad_()
        for one in inputs
    ]
    y = function(*(one.clone() for one in leaves))
    return y.detach(), *torch.autograd.grad(y, leaves, g[:, : y.shape[1]])


def collectives(device: torch.device) -> Finding:
    """The library that several ranks would send their gradients with; nothing is sent."""
    if device.type == "cuda" and dist.is_nccl_available():
        return Finding(f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")  # type: ignore[no-untyped-call]
    if dist.is_available() and dist.is_gloo_available():
        if device.type != "cuda":
            return Finding("gloo, on the CPU")
        return Finding("gloo only, no NCCL", Verdict.limited, "Install a PyTorch with NCCL for several GPUs.")
    return Finding("neither NCCL nor gloo", Verdict.limited, "One rank only; install another build of PyTorch.")


def training_steps(device: torch.device) -> Finding:
    """Steps of small networks as training takes them by default; on CUDA they are captured at last."""
    config = replace(default_trainer(), model=TINY_MODEL, loss=LOSS)
    variant = TrainerVariant(config, TINY_MODEL.architecture(8, 3, 0), device, lambda text: None)
    phase, metrics = phase_of(8, 4), {}
    for step in range(max(variant.warmup, 1)):
        reals = Reals(torch.zeros(4, 3, 8, 8, device=device), None, None)
        metrics = variant.trainer.step(phase, reals, StepRng(0, step * phase.batch, device), 0.9)
    if not all(isfinite(metrics[name].item()) for name in ("D/loss", "G/loss")):
        return Finding("losses are not finite", Verdict.broken, "Try precision=fp32 compute.cuda_graphs=off.")
    return Finding("; ".join(variant.notices) or "taken, losses are finite", *[Verdict.limited] * bool(variant.notices))
