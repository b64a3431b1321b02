"""`pggan doctor`: what this machine has, and what of the program works on it, one line each."""

import json
import os
import platform
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import torch
import torch.distributed as dist
from packaging.requirements import Requirement

from pggan.config.commands import DoctorConfig
from pggan.config.values import versions
from pggan.core.architecture import Architecture, Precision, Resampling
from pggan.core.atomic_io import existing_parent
from pggan.core.devices import DTYPES, choose_device
from pggan.core.errors import EXIT_FAILED
from pggan.core.process import available_cores, processor_facts
from pggan.core.text import duration, next_command, three_digits
from pggan.distributed.process_group import ProcessGroup
from pggan.losses import Logistic
from pggan.ops import fused
from pggan.performance.bench import phase_of
from pggan.training.build import TrainerSettings, build_trainer
from pggan.training.timing import product_rate, step_seconds

GIB = 2**30
# A run with the paper's networks keeps two checkpoints of about 0.6 GiB, writes a third, and adds grids and logs.
ENOUGH_DISK = 4 * GIB
# Networks, moments, gradients and activations of the demo's largest step, and what Python and PyTorch take themselves.
OUTPUTS = Path("outputs")  # where runs go unless run_dir= names another place
SMALL = Architecture(
    resolution=8,
    channels=3,
    num_classes=0,
    latent_size=16,
    fmap_base=128,
    fmap_decay=1.0,
    fmap_max=16,
    stddev_group=4,
    resampling=Resampling.fused,
)
LOSS = Logistic(gamma=10.0, reg_interval=1)  # with a gradient penalty, so D is differentiated twice


class Check(NamedTuple):
    """What is looked at, how, and what helps where that fails or is not enough."""

    what: str
    how: Callable[[torch.device], tuple[str, bool]]  # returns what was found, in words, and whether that is enough
    remedy: str
    needed: bool = False  # training can't run without it

    def row(self, device: torch.device) -> dict[str, str]:
        """What was found, and what helps: this command reports whatever fails."""
        try:
            found, good = self.how(device)
        except Exception as error:
            found, good = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}", False
        verdict = "ok" if good else "broken" if self.needed else "limited"
        return {"check": self.what, "verdict": verdict, "found": found, "remedy": "" if good else self.remedy}


def run(config: DoctorConfig) -> int:
    """Print what this machine has and what works on it; returns the exit code: 0 when training can run."""
    device, rows = choose_device(config.device, "device"), list[dict[str, str]]()
    for check in CHECKS:
        rows.append(row := check.row(device))
        if not config.json:
            print(f"{row['check']:<10} {row['verdict']:<8} {row['found']}", flush=True)
            print(f"{'':>19} {row['remedy']}\n" * bool(row["remedy"]), end="")
    broken = [row["check"] for row in rows if row["verdict"] == "broken"]
    if config.json:
        print(json.dumps({"device": str(device), "can_train": not broken, "checks": rows}, indent=1))
    elif broken:
        print(f"Training can't run: {', '.join(broken)}.")
    else:
        print(f"Training can run on {device}.\n{next_command('train', 'experiment=demo', 'run_dir=outputs/demo')}")
    return EXIT_FAILED if broken else 0


def program(device: torch.device) -> tuple[str, bool]:
    """Versions of this program, Python, PyTorch and the system; and whether the libraries are there that it needs."""
    wrong = [one for one in map(Requirement, requires("pggan") or []) if not fits(one)]
    if needed := [f'"{one}"' for one in wrong if one.marker is None]:
        return f"not in a version that fits: {' '.join(needed)}", False
    here, built = versions(), f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs"
    code = f"{here['pggan']} at {str(here['code'] or 'no commit')[:10]}, Python {platform.python_version()}"
    extras = ", ".join(dict.fromkeys(str(one.marker).split('"')[1] for one in wrong))
    torch_here = f"PyTorch {torch.__version__} for {built}, {platform.system()} {platform.machine()}"
    return f"{code}, {torch_here}" + f"; without the extras {extras}" * bool(extras), True


def fits(requirement: Requirement) -> bool:
    """Whether what is required is there, in a version that fits."""
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


def processor(device: torch.device) -> tuple[str, bool]:
    """The CPU, its vector instructions as PyTorch uses them, cores that this process may use, and its threads."""
    name, instructions = processor_facts()["model name"], torch.backends.cpu.get_cpu_capability()
    threads, cores = torch.get_num_threads(), available_cores()
    return f"{name}, {instructions}, {cores} of {os.cpu_count()} cores, {threads} threads", threads <= cores


def disk(device: torch.device) -> tuple[str, bool]:
    """The disk of the default run directories, which is written to."""
    place = existing_parent(OUTPUTS)
    with TemporaryFile(dir=place) as file:
        file.write(b"pggan")
    free = shutil.disk_usage(place).free
    return f"{free / GIB:.1f} GiB free at {OUTPUTS}/", free >= ENOUGH_DISK


def gpu(device: torch.device) -> tuple[str, bool]:
    """The GPUs that PyTorch finds, and what several ranks would send their gradients with."""
    if device.type == "mps":
        return "Apple silicon, through MPS", True
    if not torch.cuda.is_available():
        has_driver = Path("/proc/driver/nvidia/version").exists()
        return f"{'there is a driver, but ' * has_driver}PyTorch finds none: training runs on the CPU", not has_driver
    one, (free, total) = torch.cuda.get_device_properties(0), torch.cuda.mem_get_info(0)
    found = f"{torch.cuda.device_count()} x {one.name}, capability {one.major}.{one.minor}"
    nccl = "NCCL" if dist.is_nccl_available() else "no NCCL, which several GPUs need"
    found += f", {free / GIB:.1f} of {total / GIB:.1f} GiB free, {nccl}"
    problem = fused.problem()
    return found + f"; without Triton's kernels, layers take longer: {problem}" * (problem is not None), problem is None


def products(device: torch.device) -> tuple[str, bool]:
    """The rates of large matrix products."""
    side = 512 if device.type == "cpu" else 8192
    dtypes = {Precision.fp32: torch.float32, **DTYPES}
    rates = {one: product_rate(device, dtype, side) / 1e12 for one, dtype in dtypes.items()}
    return f"{', '.join(f'{one} {three_digits(rate)}' for one, rate in rates.items())} TFLOP/s", True


def training(device: torch.device) -> tuple[str, bool]:
    """Steps of small networks as training takes them by default; on CUDA they are captured at last."""
    phase, settings = phase_of(8, 4), TrainerSettings(loss=LOSS, precision=Precision.auto)
    trainer = build_trainer(settings, SMALL, [phase], ProcessGroup.single_process(device))
    seconds = step_seconds(trainer, phase, device)
    finite = all(bool(weights.isfinite().all()) for weights in trainer.state.g.network.weights)
    return f"small steps of {duration(seconds)}, after which weights are {'' if finite else 'not '}finite", finite


CHECKS = (
    Check("program", program, "pip install what is named here.", needed=True),
    Check("CPU", processor, "Set OMP_NUM_THREADS, or threads=, to the number of cores."),
    Check("disk", disk, "Name a place with more space: run_dir=/…/run."),
    Check("GPU", gpu, "Update the driver, install a PyTorch for its CUDA, or pip install triton."),
    Check("products", products, "Give precision= one that works."),
    Check("training", training, "Try precision=fp32 compute.cuda_graphs=off.", needed=True),
)
