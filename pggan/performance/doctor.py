"""`pggan doctor`: what this machine has, and which parts of the program work on it, one line each."""

import json
import os
import platform
import tomllib
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from math import isfinite
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import torch
import torch.distributed as dist
from packaging.requirements import Requirement

from pggan.config import R1Config
from pggan.config.commands import DoctorConfig, default_trainer
from pggan.config.values import PACKAGE, versions
from pggan.core.architecture import Precision
from pggan.core.atomic_io import existing_parent, free_bytes
from pggan.core.devices import choose_device, free_memory, require_kernels
from pggan.core.errors import EXIT_FAILED, UserError
from pggan.core.process import available_cores, processor_facts
from pggan.core.rng import StepRng
from pggan.core.text import next_command, three_digits
from pggan.distributed.process_group import ProcessGroup
from pggan.losses.base import Reals
from pggan.ops import fused
from pggan.performance.bench import phase_of
from pggan.training.build import build_trainer
from pggan.training.precision import DTYPES, set_float32
from pggan.training.timing import WARMUP, product_rate

GIB = 2**30
# A run with the paper's networks keeps two checkpoints of about 0.6 GiB, writes a third, and adds grids and logs.
ENOUGH_DISK = 4 * GIB
# Networks, moments, gradients and activations of the demo's largest step, and what Python and PyTorch take themselves.
ENOUGH_MEMORY = 2 * GIB
OUTPUTS = Path("outputs")  # where runs go unless run_dir= names another place
SIDE = 64  # of the matrix product whose result is compared
TINY_MODEL = replace(default_trainer().model, fmap_base=128, fmap_max=16)
LOSS = R1Config(name="logistic", gamma=10.0, reg_interval=1)  # with a gradient penalty, so D is differentiated twice


class Verdict(StrEnum):
    """The meaning of a finding for training."""

    ok = "ok"
    none = "none"  # this machine does not have it, and training does without
    limited = "limited"  # training runs, but the remedy makes it better
    broken = "broken"  # training can't run


class Finding(NamedTuple):
    """The result of a check."""

    found: str
    verdict: Verdict = Verdict.ok
    remedy: str = ""


def judged(found: str, remedy: str, *, good: bool, otherwise: Verdict = Verdict.limited) -> Finding:
    """A finding, with a remedy where it is not `good`."""
    return Finding(found) if good else Finding(found, otherwise, remedy)


def run(config: DoctorConfig) -> int:
    """Print what this machine has and what works on it; returns the exit code: 0 when training can run."""
    device = choose_device(config.device, "device")
    findings = {}
    for name, look in checks(device).items():
        try:
            finding = look(device)
        except Exception as error:  # whatever fails is what this command is to report
            lines = str(error).strip().splitlines() or ["no reason given"]
            verdict = Verdict.broken if name == "training" else Verdict.limited
            finding = Finding(f"{type(error).__name__}: {lines[0]}", verdict)
        findings[name] = finding
        if not config.json:
            print(f"{name:<13} {finding.verdict:<8} {finding.found}", flush=True)
            print(f"{'':>22} {finding.remedy}\n" * bool(finding.remedy), end="")
    broken = [name for name, finding in findings.items() if finding.verdict is Verdict.broken]
    if config.json:
        rows = [{"check": name, **finding._asdict()} for name, finding in findings.items()]
        print(json.dumps({"device": str(device), "can_train": not broken, "checks": rows}, indent=1))
    else:
        print(f"Training can't run: {', '.join(broken)}." if broken else f"Training can run on {device}.")
        if not broken:
            print(next_command("train", "experiment=demo", "run_dir=outputs/demo"))
    return EXIT_FAILED if broken else 0


def checks(device: torch.device) -> dict[str, Callable[[torch.device], Finding]]:
    """The checks that there are for `device`, the cheapest first."""
    cuda = device.type == "cuda"
    precisions = [Precision.fp32, *[Precision.tf32] * cuda, Precision.bf16, Precision.fp16]
    return {
        "program": program,
        "libraries": libraries,
        "extras": extras,
        "CPU": processor,
        "memory": memory,
        "disk": disk,
        "GPU": gpu,
        **{str(precision): partial(products, precision) for precision in precisions},
        **({"kernels": fused_kernels} if cuda else {}),
        "training": training_steps,
    }


def program(device: torch.device) -> Finding:
    """The versions of this program, of Python, of PyTorch and of the system."""
    here, built = versions(), f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs"
    code = f"{here['pggan']} at {str(here['code'] or 'no commit')[:10]}, Python {platform.python_version()}"
    return Finding(f"{code}, PyTorch {torch.__version__} for {built}, {platform.system()} {platform.machine()}")


def libraries(device: torch.device) -> Finding:
    """Whether all libraries that the program imports are there, in versions that fit."""
    needed = [one for one in requirements_of("pggan") if one.marker is None]
    wrong = [str(one) for one in [*needed, *requirements_of("torchvision")] if one.marker is None and not fits(one)]
    if not wrong:
        return Finding(f"all {len(needed)} that training needs, in versions that fit")
    wanted = " ".join(f'"{one}"' for one in wrong)
    return Finding(f"not in a version that fits: {', '.join(wrong)}", Verdict.broken, f"pip install {wanted}")


def extras(device: torch.device) -> Finding:
    """Which optional parts of the installation are complete."""
    optional = [(str(one.marker).split('"')[1], one) for one in requirements_of("pggan") if one.marker is not None]
    missing = dict.fromkeys(name for name, one in optional if not fits(one))
    there = ", ".join(name for name in dict.fromkeys(name for name, _ in optional) if name not in missing) or "none"
    found, remedy = there + f"; not {', '.join(missing)}" * bool(missing), f'pip install "pggan[{",".join(missing)}]"'
    return judged(found, remedy, good=not missing, otherwise=Verdict.none)


def requirements_of(name: str) -> list[Requirement]:
    """The packages that `name` requires; this program's by pyproject.toml in a checkout, else by its installation."""
    file = PACKAGE.parent / "pyproject.toml"
    if name == "pggan" and file.is_file():
        project = tomllib.loads(file.read_text())["project"]
        optional = project["optional-dependencies"].items()
        texts = [f'{one}; extra == "{extra}"' for extra, required in optional for one in required]
        return [Requirement(text) for text in (*project["dependencies"], *texts)]
    try:
        return [Requirement(text) for text in requires(name) or []]
    except PackageNotFoundError:
        return []


def fits(requirement: Requirement) -> bool:
    """Whether what is required is there, in a version that fits."""
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


def processor(device: torch.device) -> Finding:
    """The CPU, its vector instructions as PyTorch uses them, cores that this process may use, and its threads."""
    name, instructions = processor_facts()["model name"], torch.backends.cpu.get_cpu_capability()
    count, cores = torch.get_num_threads(), available_cores()
    found = f"{name}, {instructions}, {cores} of {os.cpu_count()} cores, {count} threads"
    return judged(found, f"Set OMP_NUM_THREADS={cores}, or threads={cores}.", good=count <= cores)


def memory(device: torch.device) -> Finding:
    """The memory of the machine."""
    free = free_memory(torch.device("cpu"))
    if free is None:
        return Finding("the system does not say how much is free", Verdict.none)
    remedy = "End other programs, or take a smaller model.fmap_max."
    return judged(f"{free / GIB:.1f} GiB free", remedy, good=free >= ENOUGH_MEMORY)


def disk(device: torch.device) -> Finding:
    """The disk of the default run directories, which is written to."""
    with TemporaryFile(dir=existing_parent(OUTPUTS)) as file:
        file.write(b"pggan")
    free, remedy = free_bytes(OUTPUTS), "Name a place with more space: run_dir=/…/run."
    return judged(f"{free / GIB:.1f} GiB free at {OUTPUTS}/", remedy, good=free >= ENOUGH_DISK)


def gpu(device: torch.device) -> Finding:
    """The GPUs that PyTorch finds, and what several ranks would send their gradients with."""
    if device.type == "mps":
        return Finding("Apple silicon, through MPS")
    if not torch.cuda.is_available():
        if not Path("/proc/driver/nvidia/version").exists():
            return Finding("PyTorch finds none: training runs on the CPU", Verdict.none)
        remedy = "Update the driver, or install a PyTorch for its CUDA."
        return Finding("there is a driver for one, but PyTorch finds none", Verdict.limited, remedy)
    try:
        for index in range(torch.cuda.device_count()):
            require_kernels(index, f"GPU {index}")
    except UserError as error:
        return Finding(error.problem, Verdict.limited, error.remedy)
    one, (free, total) = torch.cuda.get_device_properties(0), torch.cuda.mem_get_info(0)
    found = f"{torch.cuda.device_count()} x {one.name}, capability {one.major}.{one.minor}"
    nccl = "NCCL" if dist.is_nccl_available() else "no NCCL, which several GPUs need"
    return Finding(f"{found}, {free / GIB:.1f} of {total / GIB:.1f} GiB free, {nccl}")


def products(precision: Precision, device: torch.device) -> Finding:
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
    rate = product_rate(device, precision, dtype, side)
    return Finding(f"{three_digits(rate / 1e9)} GFLOP/s" if rate < 1e12 else f"{three_digits(rate / 1e12)} TFLOP/s")


def fused_kernels(device: torch.device) -> Finding:
    """Whether Triton is there and compiles the fused kernels; `training` takes steps with them."""
    reason = fused.problem()
    found = "Triton's, compiled" if reason is None else f"not used: {reason}"
    return judged(found, "pip install triton, or train without: layers take longer.", good=reason is None)


def training_steps(device: torch.device) -> Finding:
    """Steps of small networks as training takes them by default; on CUDA they are captured at last."""
    phase, metrics = phase_of(8, 4), {}
    config, group = replace(default_trainer(), model=TINY_MODEL, loss=LOSS), ProcessGroup.single_process(device)
    trainer = build_trainer(config, TINY_MODEL.architecture(8, 3, 0), [phase], group)
    for number in range(WARMUP[device.type]):
        reals = Reals(torch.zeros(4, 3, 8, 8, device=device), None, None)
        metrics = trainer.step(phase, reals, StepRng(0, number * phase.batch, device), 0.9)
    if not all(isfinite(metrics[name].item()) for name in ("D/loss", "G/loss")):
        return Finding("losses are not finite", Verdict.broken, "Try precision=fp32 compute.cuda_graphs=off.")
    return Finding("taken, losses are finite")
