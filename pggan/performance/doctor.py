"""`pggan doctor` checks whether this machine can train."""

import os
import platform
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from tempfile import TemporaryFile

import torch
import torch.distributed as dist
from packaging.requirements import Requirement

from pggan.config.commands import DoctorConfig
from pggan.config.defaults import default_values
from pggan.config.train import ModelConfig
from pggan.config.validation import validated
from pggan.config.values import versions
from pggan.core.architecture import Precision
from pggan.core.atomic_io import existing_parent
from pggan.core.devices import choose_device, configure_process
from pggan.core.errors import EXIT_FAILED
from pggan.core.process import available_cores, processor_facts
from pggan.core.text import duration, next_command
from pggan.distributed.process_group import ProcessGroup
from pggan.losses import Logistic
from pggan.performance.bench import phase_of
from pggan.training.build import TrainerSettings, build_trainer, missing
from pggan.training.timing import step_seconds

GIB = 2**30
# A run with the paper's networks stores pictures, logs, and up to three checkpoints of 0.6 GiB each.
ENOUGH_DISK = 4 * GIB
OUTPUTS = Path("outputs")  # parent of the default run directories
LOSS = Logistic(gamma=10.0, reg_interval=1)  # Each step has the R1 penalty, which tests second derivatives.


def run(config: DoctorConfig) -> int:
    """Run all checks and print the results; returns 0 if training can run, else EXIT_FAILED."""
    device, broken = choose_device(config.device, "device"), list[str]()
    configure_process(device)
    for what, check, needed, remedy in CHECKS:
        try:
            found, good = check(device)
        except Exception as error:
            found, good = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}", False
        advice = "" if good else f"\n{'':>19} {remedy}"
        print(f"{what:<10} {'ok' if good else 'broken' if needed else 'limited':<8} {found}{advice}", flush=True)
        broken += [what] * (needed and not good)
    if broken:
        print(f"Training can't run: {', '.join(broken)}.")
    else:
        print(f"Training can run on {device}.\n{next_command('train', 'experiment=demo', 'run_dir=outputs/demo')}")
    return EXIT_FAILED if broken else 0


def program(device: torch.device) -> tuple[str, bool]:
    """Check that the required libraries are installed in allowed versions."""
    wrong = [one for one in map(Requirement, requires("pggan") or []) if not fits(one)]
    if needed := [f'"{one}"' for one in wrong if one.marker is None]:
        return f"libraries are missing or have an unsupported version: {' '.join(needed)}", False
    here, built = versions(), f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs"
    code = f"{here['pggan']} at {str(here['code'] or 'no commit')[:10]}, Python {platform.python_version()}"
    extras = ", ".join(dict.fromkeys(str(one.marker).split('"')[1] for one in wrong))
    torch_here = f"PyTorch {torch.__version__} for {built}, {platform.system()} {platform.machine()}"
    return f"{code}, {torch_here}" + f"; these extras are not installed: {extras}" * bool(extras), True


def fits(requirement: Requirement) -> bool:
    """Whether the required library is installed in an allowed version."""
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


def processor(device: torch.device) -> tuple[str, bool]:
    """Check that PyTorch has no more threads than cores."""
    name, instructions = processor_facts()["model name"], torch.backends.cpu.get_cpu_capability()
    threads, cores = torch.get_num_threads(), available_cores()
    return f"{name}, {instructions}, {cores} of {os.cpu_count()} cores, {threads} threads", threads <= cores


def disk(device: torch.device) -> tuple[str, bool]:
    """Check that the folder of run directories can be written, and that its disk has enough space."""
    place = existing_parent(OUTPUTS)
    with TemporaryFile(dir=place) as file:
        file.write(b"pggan")
    free = shutil.disk_usage(place).free
    return f"{free / GIB:.1f} GiB free at {OUTPUTS}/", free >= ENOUGH_DISK


def gpu(device: torch.device) -> tuple[str, bool]:
    """Check that PyTorch can use the GPUs and the fused Triton kernels."""
    limits = missing(device)
    if device.type == "mps":
        return "Apple silicon, through MPS", True
    if not torch.cuda.is_available():
        return " ".join(limits) or "PyTorch finds no GPU: training runs on the CPU", not limits
    one, (free, total) = torch.cuda.get_device_properties(0), torch.cuda.mem_get_info(0)
    found = f"{torch.cuda.device_count()} x {one.name}, capability {one.major}.{one.minor}"
    nccl = "NCCL" if dist.is_nccl_available() else "no NCCL, which several GPUs need"
    found += f", {free / GIB:.1f} of {total / GIB:.1f} GiB free, {nccl}"
    return "; ".join([found, *limits]), not limits


def training(device: torch.device) -> tuple[str, bool]:
    """Train small networks for a few steps, and check that all weights are finite."""
    phase, settings = phase_of(8, 4), TrainerSettings(loss=LOSS, precision=Precision.auto)
    model = validated(ModelConfig, default_values({})["model"] | {"fmap_base": 128, "fmap_max": 16})
    small = model.architecture(8, channels=3, num_classes=0)
    trainer = build_trainer(settings, small, [phase], ProcessGroup.single_process(device))
    seconds = step_seconds(trainer, phase, device)
    finite = all(bool(weights.isfinite().all()) for weights in trainer.state.g.network.weights)
    return f"a test step takes {duration(seconds)}; {'all' if finite else 'not all'} weights are finite", finite


# (name, function that returns (findings, whether the check passed), whether training needs the check, remedy)
CHECKS: tuple[tuple[str, Callable[[torch.device], tuple[str, bool]], bool, str], ...] = (
    ("program", program, True, "Run pip install for the libraries named here."),
    ("CPU", processor, False, "Set OMP_NUM_THREADS or threads= to the number of cores."),
    ("disk", disk, False, "Set run_dir= to a directory on a disk with more space."),
    ("GPU", gpu, False, "Update the driver, install PyTorch for the driver's CUDA version, or run pip install triton."),
    ("training", training, True, "Try precision=fp32 compute.cuda_graphs=off."),
)
