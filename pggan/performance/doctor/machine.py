"""The machine besides its GPUs: software, processor, memory, disk."""

import os
import platform
import shutil
import sysconfig
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile

import torch
from packaging.requirements import Requirement
from PIL import Image

from pggan.config.describe import PACKAGE, versions
from pggan.core.atomic_io import existing_parent
from pggan.core.cpu import available_cores, processor_facts
from pggan.core.devices import free_memory
from pggan.core.disk import free_bytes
from pggan.performance.doctor.finding import Finding, Verdict

GIB = 2**30
# A run with the paper's networks keeps two checkpoints of about 0.6 GiB, writes a third, and adds grids and logs.
ENOUGH_DISK = 4 * GIB
# Networks, moments, gradients and activations of the demo's largest step, and what Python and PyTorch take themselves.
ENOUGH_MEMORY = 2 * GIB
OUTPUTS = Path("outputs")  # where runs go unless run_dir= names another place


def program(device: torch.device) -> Finding:
    """The versions of this program, of Python and of the system."""
    code = str(versions()["code"] or "")[:10]
    system = f"{platform.system()} {platform.machine()}"
    return Finding(f"{versions()['pggan']}{code and f' at {code}'}, Python {platform.python_version()}, {system}")


def pytorch(device: torch.device) -> Finding:
    """PyTorch's version, what it was built for, and whether torchvision was built for it."""
    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for CPUs"
    wanted = next((one for one in _requirements("torchvision") if one.name == "torch"), None)
    if wanted is None or wanted.specifier.contains(version("torch"), prereleases=True):
        vision = f", torchvision {version('torchvision')} fits" if wanted is not None else ""
        return Finding(f"{torch.__version__}, {built}{vision}")
    remedy = 'Install the two together: pip install "pggan[datasets]"'
    return Finding(f"{torch.__version__}, {built}; torchvision wants {wanted}", Verdict.limited, remedy)


def libraries(device: torch.device) -> Finding:
    """Whether all libraries that the program imports are there, in versions that fit."""
    needed = [one for one in own_requirements() if one.marker is None]
    wrong = [one for one in needed if not _fits(one)]
    if not wrong:
        return Finding(f"all {len(needed)} that training needs, in versions that fit")
    found = ", ".join(f"{one.name} {_version(one.name) or 'missing'}" for one in wrong)
    wanted = " ".join(f'"{one.name}{one.specifier}"' for one in wrong)
    return Finding(found, Verdict.broken, f"pip install {wanted}")


def extras(device: torch.device) -> Finding:
    """Which optional parts of the installation are complete."""
    parts: dict[str, list[Requirement]] = {}
    for one in own_requirements():
        if one.marker is not None:
            parts.setdefault(str(one.marker).split('"')[1], []).append(one)
    missing = [name for name, required in parts.items() if not all(map(_fits, required))]
    there = ", ".join(name for name in parts if name not in missing) or "none"
    if not missing:
        return Finding(there)
    return Finding(f"{there}; not {', '.join(missing)}", Verdict.none, f'pip install "pggan[{",".join(missing)}]"')


def own_requirements() -> list[Requirement]:
    """The packages that this program requires, by pyproject.toml in a checkout, else by its installation."""
    file = PACKAGE.parent / "pyproject.toml"
    if not file.is_file():
        return _requirements("pggan")
    project = tomllib.loads(file.read_text())["project"]
    optional = project["optional-dependencies"].items()
    texts = [f'{one}; extra == "{extra}"' for extra, required in optional for one in required]
    return [Requirement(text) for text in (*project["dependencies"], *texts)]


def processor(device: torch.device) -> Finding:
    """The CPU, its vector instructions as PyTorch uses them, and the cores that this process may use."""
    name, instructions = processor_facts()["model name"], torch.backends.cpu.get_cpu_capability()
    return Finding(f"{name}, {instructions}, {available_cores()} of {os.cpu_count()} cores")


def threads(device: torch.device) -> Finding:
    """The CPU threads of a process."""
    count, cores = torch.get_num_threads(), available_cores()
    setting = os.environ.get("OMP_NUM_THREADS")
    found = f"{count}{f' (OMP_NUM_THREADS={setting})' if setting else ''}"
    if count > cores:
        return Finding(
            f"{found} for {cores} cores", Verdict.limited, f"Set OMP_NUM_THREADS={cores}, or threads={cores}."
        )
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


def compiler(device: torch.device) -> Finding:
    """The compiler that torch.compile needs; nothing is compiled, which takes longer than all other checks together."""
    if device.type == "cuda" and find_spec("triton") is None:
        return _needs("Triton", False, "pip install triton, or leave compute.compile=false")
    if device.type == "cuda":  # Triton's own kernels need it, too: what launches them is C
        header = Path(sysconfig.get_path("include"), "Python.h")
        there = any(map(shutil.which, (os.environ.get("CC", "gcc"), "clang"))) and header.is_file()
        return _needs("a C compiler with Python.h", there, "apt-get install gcc python3-dev, or set CC")
    return _needs(
        "a C++ compiler", shutil.which(os.environ.get("CXX", "g++")) is not None, "Leave compute.compile=false"
    )


def _needs(what: str, there: bool, remedy: str) -> Finding:
    return Finding(f"{what} is there") if there else Finding(f"{what} is missing", Verdict.none, remedy)


def _requirements(name: str) -> list[Requirement]:
    try:
        return [Requirement(text) for text in requires(name) or []]
    except PackageNotFoundError:
        return []


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _fits(requirement: Requirement) -> bool:
    found = _version(requirement.name)
    return found is not None and requirement.specifier.contains(found, prereleases=True)
