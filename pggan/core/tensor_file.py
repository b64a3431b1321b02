"""Safetensors files, written with the permissions and the errors of any other file."""

import re
from pathlib import Path
from stat import S_IMODE

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write a safetensors file, with `metadata` in its header; raises OSError for what the system refuses.

    The library writes to a temporary file with mode 0600, and raises SafetensorError for I/O errors.
    """
    path.touch()
    mode = S_IMODE(path.stat().st_mode)  # set by the umask, which can't be read without changing it for all threads
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), str(error)) from error
    path.chmod(mode)
