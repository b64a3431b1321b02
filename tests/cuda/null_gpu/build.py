"""Builds the null GPU, and starts Python programs on it."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ENTRY_POINT = HERE / "entry_point"  # makes torch call session.py
SOURCES = sorted(HERE.glob("*.cpp"))
PACKAGES = Path(torch.__file__).parents[1]
# The wheels that come with PyTorch; the headers of the compiler, in crt/, are in Triton's alone.
HEADERS = [PACKAGES / name for name in ("nvidia/cu13/include", "nvidia/nccl/include", "triton/backends/nvidia/include")]
FLAGS = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
LIBRARY = "libcuda.so.1"  # by this name Triton looks for the driver
# Warnings are errors, but for one of torch at its first forward derivative.
WARNINGS = ["-W", "error", "-W", "ignore:`torch.jit.script` is"]


def missing() -> str:
    """What the null GPU needs and is not here; empty where it can be built."""
    needs = {
        "Linux on x86-64": (platform.system(), platform.machine()) == ("Linux", "x86_64"),
        "PyTorch for CUDA 13": (torch.version.cuda or "").startswith("13."),
        "g++": shutil.which("g++") is not None,
        **{str(path): path.exists() for path in HEADERS},
        "the header nv/target (pip install nvidia-cuda-cccl)": (HEADERS[0] / "nv" / "target").is_file(),
    }
    return ", ".join(name for name, there in needs.items() if not there)


def build(cache: Path) -> Path:
    """The library in `cache`, compiled unless that was done before from the same sources for the same PyTorch."""
    texts = [path.read_bytes() for path in [*SOURCES, *sorted(HERE.glob("*.hpp"))]]
    key = sha256(b"\0".join([torch.__version__.encode(), " ".join(FLAGS).encode(), *texts])).hexdigest()[:16]
    library = cache / key / LIBRARY
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        includes = [word for path in HEADERS for word in ("-isystem", str(path))]
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / LIBRARY
            command = ["g++", *FLAGS, *includes, f"-Wl,-soname,{LIBRARY}", "-o", str(made), *map(str, SOURCES)]
            subprocess.run([*command, "-ldl", "-lpthread"], check=True)
            made.replace(library)  # at once, because other processes of pytest may build it, too
    return library


def environment(library: Path) -> dict[str, str]:
    """The environment of a program on the null GPU."""
    path = os.pathsep.join([str(ROOT), str(ENTRY_POINT), os.environ.get("PYTHONPATH", "")])
    ours = {
        "LD_PRELOAD": str(library),
        "TRITON_LIBCUDA_PATH": str(library.parent),
        "TRITON_CACHE_DIR": str(library.parent / "triton"),
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": path,
    }
    return os.environ | ours


def started(library: Path, name: str, *arguments: str, **streams: Any) -> subprocess.Popen[str]:
    """The Python module `name`, started on the null GPU, with the standard streams of `subprocess.Popen`."""
    command = [sys.executable, *WARNINGS, "-m", name, *arguments]
    return subprocess.Popen(command, env=environment(library), cwd=ROOT, text=True, **streams)


if __name__ == "__main__":  # any program on the null GPU
    sys.exit(missing() or started(build(Path.home() / ".cache" / "pggan" / "null_gpu"), *sys.argv[1:]).wait())
