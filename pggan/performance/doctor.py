"""`pggan doctor`: what this machine has, and which parts of the program work on it, one line each."""

import json
import os
import platform
from collections.abc import Callable, Mapping
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

from pggan.config.commands import DoctorConfig, default_trainer
from pggan.config.train import R1Config
from pggan.config.values import versions
from pggan.core.architecture import Precision
from pggan.core.atomic_io import existing_parent, free_bytes
from pggan.core.devices import choose_device, free_memory, require_kernels
from pggan.core.errors import EXIT_FAILED
from pggan.core.process import available_cores, processor_facts
from pggan.core.rng import StepRng
from pggan.core.text import next_command, three_digits
from pggan.distributed.process_group import ProcessGroup
from pggan.losses.base import Reals
from pggan.ops import fused
from pggan.performance.bench import phase_of
from pggan.training.build import build_trainer
from pggan.training.precision import DTYPES
from pggan.training.timing import WARMUP, product_rate

GIB = 2**30
# A run with the paper's networks keeps two checkpoints of about 0.6 GiB, writes a third, and adds grids and logs.
ENOUGH_DISK = 4 * GIB
# Networks, moments, gradients and activations of the demo's largest step, and what Python and PyTorch take themselves.
ENOUGH_MEMORY = 2 * GIB
OUTPUTS = Path("outputs")  # where runs go unless run_dir= names another place
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
        findings[name] = finding = looked(look, device, Verdict.broken if name == "training" else Verdict.limited)
        if not config.json:
            print(f"{name:<13} {finding.verdict:<8} {finding.found}", flush=True)
            print(f"{'':>22} {finding.remedy}\n" * bool(finding.remedy), end="")
    broken = [name for name, finding in findings.items() if finding.verdict is Verdict.broken]
    if config.json:
        rows = [{"check": name, **finding._asdict()} for name, finding in findings.items()]
        print(json.dumps({"device": str(device), "can_train": not broken, "checks": rows}, indent=1))
    else:
        print(f"Training can't run: {', '.join(broken)}." if broken else f"Training can run on {device}.")
        print(f"{next_command('train', 'experiment=demo', 'run_dir=outputs/demo')}\n" * (not broken), end="")
    return EXIT_FAILED if broken else 0


def looked(look: Callable[[torch.device], Finding], device: torch.device, otherwise: Verdict) -> Finding:
    """The finding of `look`, or the error that it raises: this command reports whatever fails."""
    try:
        return look(device)
    except Exception as error:
        return Finding(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}", otherwise)


def checks(device: torch.device) -> Mapping[str, Callable[[torch.device], Finding]]:
    """The checks that there are for `device`, the cheapest first."""
    precisions = [Precision.fp32, *[Precision.tf32] * (device.type == "cuda"), Precision.bf16, Precision.fp16]
    machine = {"program": program, "libraries": libraries, "CPU": processor, "memory": memory, "disk": disk, "GPU": gpu}
    by_precision = {str(precision): partial(products, precision) for precision in precisions}
    return {**machine, **by_precision, "training": training_steps}


def program(device: torch.device) -> Finding:
    """The versions of this program, of Python, of PyTorch and of the system."""
    here, built = versions(), f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs"
    code = f"{here['pggan']} at {str(here['code'] or 'no commit')[:10]}, Python {platform.python_version()}"
    return Finding(f"{code}, PyTorch {torch.__version__} for {built}, {platform.system()} {platform.machine()}")


def libraries(device: torch.device) -> Finding:
    """Whether all libraries that the program needs are there, in versions that fit, and which optional ones."""
    needed = [Requirement(text) for text in requires("pggan") or []]
    wrong = [one for one in needed if not fits(one)]
    if broken := [f'"{one}"' for one in wrong if one.marker is None]:
        remedy = f"pip install {' '.join(broken)}"
        return Finding(f"not in a version that fits: {', '.join(broken)}", Verdict.broken, remedy)
    extras = dict.fromkeys(str(one.marker).split('"')[1] for one in wrong)
    found = "all that training needs, in versions that fit" + f"; without {', '.join(extras)}" * bool(extras)
    return judged(found, f'pip install "pggan[{",".join(extras)}]"', good=not extras, otherwise=Verdict.none)


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
    free, remedy = free_memory(torch.device("cpu")), "End other programs, or take a smaller model.fmap_max."
    found = "the system does not say how much is free" if free is None else f"{free / GIB:.1f} GiB free"
    return judged(found, remedy, good=free is None or free >= ENOUGH_MEMORY)


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
    one, (free, total) = torch.cuda.get_device_properties(0), torch.cuda.mem_get_info(0)
    for index in range(torch.cuda.device_count()):
        require_kernels(index, f"GPU {index}")
    found = f"{torch.cuda.device_count()} x {one.name}, capability {one.major}.{one.minor}"
    nccl = "NCCL" if dist.is_nccl_available() else "no NCCL, which several GPUs need"
    return Finding(f"{found}, {free / GIB:.1f} of {total / GIB:.1f} GiB free, {nccl}")


def products(precision: Precision, device: torch.device) -> Finding:
    """The rate of large matrix products in `precision`."""
    side = 512 if device.type == "cpu" else 8192
    rate = product_rate(device, precision, DTYPES.get(precision, torch.float32), side)
    return Finding(f"{three_digits(rate / 1e12)} TFLOP/s")


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
    reason = fused.problem() if device.type == "cuda" else None
    found = "taken, losses are finite" + ("" if reason is None else f"; without Triton's kernels: {reason}")
    return judged(found, "pip install triton, or train without: layers take longer.", good=reason is None)
