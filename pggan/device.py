"""Where the arithmetic happens."""

import torch

from pggan.errors import UserError


def choose_device(devices: str) -> torch.device:
    """The device named by `devices`: auto (CUDA, else MPS, else CPU), cpu, cuda or mps.

    Raises UserError when it is not there.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if devices == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if there[name]))
    if devices not in there:
        raise UserError(f"devices={devices} is not a device.", f"Take auto, {', '.join(there)}.")
    if not there[devices]:
        found = ", ".join(name for name, is_there in there.items() if is_there)
        raise UserError(f"devices={devices}: there is none that PyTorch can use.", f"Found here: {found}.")
    return torch.device(devices)
