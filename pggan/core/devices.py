"""The devices of this machine: choosing them, their memory, waiting for their work."""

import os
import resource
import sys

import torch

from pggan.core.cpu import available_cores, available_memory
from pggan.core.errors import UserError


def choose_device(devices: str, key: str = "devices") -> torch.device:
    """The device that the value `devices` of `key` names: auto (CUDA, else MPS, else CPU), cpu, cuda or mps.

    auto passes over a GPU that this PyTorch was not built for, and says so. Raises UserError when this machine does not
    have the device, or when PyTorch was not built for it.
    """
    usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if usable["cuda"] and devices in ("auto", "cuda"):
        try:
            require_kernels(0, f"{key}={devices}")
        except UserError as error:
            if devices != "auto":
                raise
            print(f"Training and drawing do without the GPU: {error}", file=sys.stderr)
            usable["cuda"] = False
    found = [name for name in usable if usable[name]]
    if devices not in ("auto", *found):
        raise UserError(f"{key}={devices}: PyTorch finds no such device.", f"Use auto, or one of {', '.join(found)}.")
    return torch.device(found[0] if devices == "auto" else devices)


def require_kernels(index: int, setting: str) -> None:
    """Raise UserError, which names `setting`, unless this PyTorch has kernels for the CUDA device `index`.

    A kernel for X.Y runs on all X.Z with Z >= Y, one that the driver compiles (PTX) on all later ones.
    Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/, "Compute Capability".
    """
    built = torch.cuda.get_arch_list()
    capability = torch.cuda.get_device_capability(index)
    for name in built:
        kind, _, number = name.partition("_")
        if not number:  # AMD's names, such as gfx942
            return
        generation, revision = divmod(int(number.rstrip("af")), 10)
        if (generation, revision) <= capability and (kind == "compute" or generation == capability[0]):
            return
    problem = (
        f"{setting}: {torch.cuda.get_device_name(index)} has capability {capability[0]}.{capability[1]}, "
        f"and PyTorch {torch.__version__} was built for {', '.join(built) or 'no GPU'}."
    )
    raise UserError(problem, "Install a PyTorch that was built for it (https://pytorch.org), or use the CPU.")


def count_devices(devices: str) -> tuple[str, int]:
    """Kind and number of the devices of this machine that `devices` asks for; each gets one rank.

    auto: all CUDA devices, else one of MPS or CPU; N: that many CUDA devices; cpu:N: that many ranks on the CPU.
    Raises UserError when this machine does not have them.
    """
    kind, _, number = devices.rpartition(":")
    if not number.isdecimal() and not kind:
        chosen = choose_device(devices).type
        return chosen, torch.cuda.device_count() if devices == "auto" and chosen == "cuda" else 1
    if not (number.isdecimal() and int(number) > 0 and devices in (number, f"cpu:{number}")):
        problem = f"devices={devices} is not a choice of devices."
        raise UserError(problem, "Use auto, cpu, cuda, mps, N (CUDA devices) or cpu:N.")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not kind and int(number) > found:
        problem = f"devices={devices}: this machine has {found} CUDA devices."
        raise UserError(problem, f"Ask for no more, or use devices=cpu:{devices} for ranks on the CPU.")
    return kind or "cuda", int(number)


def device_of_rank(devices: str, local_rank: int, local_world_size: int) -> torch.device:
    """The device of one of several ranks; raises UserError when there are more ranks than `devices` says.

    A rank that sees one CUDA device takes it, as where Slurm gives each task a GPU of its own: whether another rank has
    the same one is not known here.
    """
    kind, count = count_devices(devices)
    usable = {"cuda": torch.cuda.device_count(), "mps": 1}.get(kind, local_world_size)
    numbered, alone = devices not in ("auto", "cpu", "cuda", "mps"), kind == "cuda" and usable == 1
    if (numbered and count != local_world_size) or (usable < local_world_size and not alone):
        problem = f"{local_world_size} ranks were started on this machine for {count} devices (devices={devices})."
        raise UserError(problem, "Start one rank per device; devices=cpu shares the CPU among any number.")
    if kind != "cuda":
        return torch.device(kind)
    index = 0 if alone else local_rank
    require_kernels(index, f"devices={devices}")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def set_threads(threads: int | None, *, one: bool = False) -> None:
    """Let torch compute in `threads` CPU threads; None: as OMP_NUM_THREADS says, else one if `one`, else all cores."""
    if threads is None and "OMP_NUM_THREADS" not in os.environ:
        most = 1 if one else available_cores()  # PyTorch knows no limits of time
        threads = most if most < torch.get_num_threads() else None
    if threads is not None:
        torch.set_num_threads(threads)


def synchronize(device: torch.device) -> None:
    """Wait until `device` has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def free_memory(device: torch.device, processes: int = 1) -> int | None:
    """Free bytes of `device` for each of `processes` that share a CPU's memory; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = available_memory()
    return None if free is None else free // processes


def peak_memory(device: torch.device) -> int:
    """The most bytes held so far: by the device's allocator on CUDA, by this process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_problem(error: torch.OutOfMemoryError) -> str:
    """The first sentence of PyTorch's message, which says how much was asked for; without a full stop."""
    return str(error).partition("\n")[0].partition(". GPU")[0]
