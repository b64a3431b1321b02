"""Weights of pretrained networks that other programs have written: tensors are read, code never."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from pggan.core.errors import UserError


def read_weights(path: Path) -> dict[str, Tensor]:
    """The named tensors in a .safetensors file, or in one of `torch.save`; raises UserError for anything else."""
    if not path.is_file():
        raise UserError(f"There are no weights at {path}.", "Give the place of the file that holds them.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        stored = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(stored, dict) or not all(isinstance(value, Tensor) for value in stored.values()):
            raise ValueError("it does not hold named tensors")
        return stored
    except KeyError as error:  # by which PyTorch's reader says that it does not know a byte
        raise UserError(f"{path} does not hold weights.", "Give a state_dict or a .safetensors.") from error
    except (OSError, SafetensorError, ValueError, RuntimeError, EOFError) as error:
        raise UserError(f"{path} does not hold weights: {error}", "Give a state_dict or a .safetensors.") from error
    except Exception as error:  # of torch's restricted reader, whose class has a name that is not public
        problem = f"{path} holds more than tensors, or is damaged."
        raise UserError(problem, "Save the model's state_dict() alone.") from error
