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
from importlib.util import find_spec
from io import BytesIO
from math import isfinite
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import torch
import torch.distributed as dist
from packaging.requirements import Requirement
from PIL import Image

from pggan.config import DoctorConfig, Precision, R1Config, default_trainer
from pggan.config.describe import PACKAGE, versions
from pggan.core.atomic_io import existing_parent
from pggan.core.batch import Reals
from pggan.core.cpu import available_cores, processor_facts
from pggan.core.devices import choose_device, free_memory, require_kernels
from pggan.core.disk import free_bytes
from pggan.core.errors import EXIT_FAILED, UserError
from pggan.core.formatting import three_digits
from pggan.core.next_command import next_command
from pggan.core.rng import StepRng
from pggan.distributed.process_group import ProcessGroup
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
        "PyTorch": pytorch,
        "libraries": libraries,
        "extras": extras,
        "images": images,
        "CPU": processor,
        "memory": memory,
        "disk": disk,
        "GPU": gpu,
        **{str(precision): partial(products, precision) for precision in precisions},
        **({"kernels": fused_kernels} if cuda else {}),
        "ranks": collectives,
        "training": training_steps,
    }


def program(device: torch.device) -> Finding:
    """The versions of this program, of Python and of the system."""
    code = str(versions()["code"] or "")[:10]
    system = f"{platform.system()} {platform.machine()}"
    return Finding(f"{versions()['pggan']}{code and f' at {code}'}, Python {platform.python_version()}, {system}")


def pytorch(device: torch.device) -> Finding:
    """PyTorch's version, what it was built for, and whether torchvision was built for it."""
    built = (
        f"{torch.__version__}, for CUDA {torch.version.cuda}"
        if torch.version.cuda
        else f"{torch.__version__}, for CPUs"
    )
    wanted = next((one for one in requirements_of("torchvision") if one.name == "torch"), None)
    if wanted is None or fits(wanted):
        return Finding(built)
    remedy = 'Install the two together: pip install "pggan[datasets]"'
    return Finding(f"{built}; torchvision wants {wanted}", Verdict.limited, remedy)


def libraries(device: torch.device) -> Finding:
    """Whether all libraries that the program imports are there, in versions that fit."""
    needed = [one for one in requirements_of("pggan") if one.marker is None]
    wrong = [str(one) for one in needed if not fits(one)]
    if not wrong:
        return Finding(f"all {len(needed)} that training needs, in versions that fit")
    wanted = " ".join(f'"{one}"' for one in wrong)
    return Finding(f"not in a version that fits: {', '.join(wrong)}", Verdict.broken, f"pip install {wanted}")


def extras(device: torch.device) -> Finding:
    """Which optional parts of the installation are complete."""
    optional = [one for one in requirements_of("pggan") if one.marker is not None]
    parts = dict.fromkeys(str(one.marker).split('"')[1] for one in optional)
    missing = dict.fromkeys(str(one.marker).split('"')[1] for one in optional if not fits(one))
    there = ", ".join(name for name in parts if name not in missing) or "none"
    if not missing:
        return Finding(there)
    return Finding(f"{there}; not {', '.join(missing)}", Verdict.none, f'pip install "pggan[{",".join(missing)}]"')


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


def images(device: torch.device) -> Finding:
    """Whether image files can be written and read."""
    import simplejpeg  # which may be missing

    pixels = Image.new("RGB", (8, 8), (200, 100, 50))
    contents = {}
    for kind in ("PNG", "JPEG", "WEBP"):
        pixels.save(file := BytesIO(), kind)
        contents[kind] = file.getvalue()
        with Image.open(file) as again:
            again.load()
    simplejpeg.decode_jpeg(contents["JPEG"])
    return Finding("PNG, JPEG and WebP written and read")


def processor(device: torch.device) -> Finding:
    """The CPU, its vector instructions as PyTorch uses them, cores that this process may use, and its threads."""
    name, instructions = processor_facts()["model name"], torch.backends.cpu.get_cpu_capability()
    count, cores = torch.get_num_threads(), available_cores()
    found = f"{name}, {instructions}, {cores} of {os.cpu_count()} cores, {count} threads"
    if count > cores:
        return Finding(found, Verdict.limited, f"Set OMP_NUM_THREADS={cores}, or threads={cores}.")
    return Finding(found)


def memory(device: torch.device) -> Finding:
    """The memory of the machine."""
    free = free_memory(torch.device("cpu"))
    if free is None:
        return Finding("the system does not say how much is free", Verdict.none)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if free >= ENOUGH_MEMORY:
        return Finding(found)
    return Finding(found, Verdict.limited, "End other programs, or take a smaller model.fmap_max.")


def disk(device: torch.device) -> Finding:
    """The disk of the default run directories, which is written to."""
    with TemporaryFile(dir=existing_parent(OUTPUTS)) as file:
        file.write(b"pggan")
        file.flush()
        os.fsync(file.fileno())
    free = free_bytes(OUTPUTS)
    found = f"{free / GIB:.1f} GiB free at {OUTPUTS}/"
    if free >= ENOUGH_DISK:
        return Finding(found)
    return Finding(found, Verdict.limited, "Name a place with more space: run_dir=/…/run.")


def gpu(device: torch.device) -> Finding:
    """The GPUs that PyTorch finds."""
    if device.type == "mps":
        return Finding("Apple silicon, through MPS")
    if not torch.cuda.is_available():
        if not Path("/proc/driver/nvidia/version").exists():
            return Finding("PyTorch finds none: training runs on the CPU", Verdict.none)
        built = torch.version.cuda is not None
        remedy = (
            "Update the driver, or install a PyTorch for its CUDA." if built else "Install PyTorch's build for CUDA."
        )
        return Finding("there is a driver for one, but PyTorch finds none", Verdict.limited, remedy)
    try:
        for index in range(torch.cuda.device_count()):
            require_kernels(index, f"GPU {index}")
    except UserError as error:
        return Finding(error.problem, Verdict.limited, error.remedy)
    properties, (free, total) = torch.cuda.get_device_properties(0), torch.cuda.mem_get_info(0)
    capability = f"capability {properties.major}.{properties.minor}, {free / GIB:.1f} of {total / GIB:.1f} GiB free"
    return Finding(f"{torch.cuda.device_count()} x {properties.name}, {capability}")


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
    if find_spec("triton") is None:
        return Finding("no Triton: layers take longer", Verdict.limited, "pip install triton")
    if (reason := fused.problem()) is not None:
        return Finding(f"not used: {reason}", Verdict.limited, "Training is slower.")
    return Finding(f"Triton {version('triton')}")


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
    notices, phase, metrics = list[str](), phase_of(8, 4), {}
    config, group = replace(default_trainer(), model=TINY_MODEL, loss=LOSS), ProcessGroup.single_process(device)
    trainer = build_trainer(config, TINY_MODEL.architecture(8, 3, 0), [phase], group, log=notices.append)
    for number in range(WARMUP[device.type]):
        reals = Reals(torch.zeros(4, 3, 8, 8, device=device), None, None)
        metrics = trainer.step(phase, reals, StepRng(0, number * phase.batch, device), 0.9)
    if not all(isfinite(metrics[name].item()) for name in ("D/loss", "G/loss")):
        return Finding("losses are not finite", Verdict.broken, "Try precision=fp32 compute.cuda_graphs=off.")
    return Finding("; ".join(notices) or "taken, losses are finite", *[Verdict.limited] * bool(notices))
