"""Whether a change leaves every bit of training as it was: short runs, and a digest of each tensor and picture.

    python -m benchmarks.identity before.json              # in the checkout before the change
    python -m benchmarks.identity after.json before.json   # after it: names what differs

All losses, precisions, gradient reductions, elastic training, labels, a resumed run, `sample` and `interpolate`, on one
rank and on two; about ten minutes on two cores.  Bits depend on the processor and on the versions of the libraries.
"""

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image, ImageSequence
from safetensors import safe_open

SMALL = [
    "model.fmap_base=64",
    "model.fmap_max=16",
    "schedule.final_resolution=16",
    "schedule.stable_images=32",
    "evaluation.metrics=[]",  # their places depend on the clock
    "schedule.fade_images=48",
    "schedule.batch=16",
    "monitor.grid=4x2",
]
ENDS = {"fading": 200, "stable": 256}  # images; 16x16 is faded in from 192 to 240
RANKS = {
    "1": ["devices=cpu"],
    "1 elastic": ["devices=cpu", "elastic=true"],
    "2 fp32": ["devices=cpu:2"],
    "2 bf16": ["devices=cpu:2", "gradients=bf16"],
    "2 dgc": ["devices=cpu:2", "gradients=dgc"],
    "2 elastic": ["devices=cpu:2", "elastic=true"],
}
OTHERS = {
    "labels": ["data.labels=true"],
    "labels logistic 2": ["data.labels=true", "loss=logistic", "devices=cpu:2"],
    "fp16": ["precision=fp16"],
    "micro-batches": ["compute.micro_batch_size=8", "compute.activation_checkpointing=true"],
    "unfused native": ["compute.convolution=native", "model.resampling=unfused"],
    "winograd jvp": ["compute.convolution=winograd", "compute.penalty=jvp"],
    "im2col": ["compute.convolution=im2col"],
    "direct": ["compute.convolution=direct"],
    "learning rates": ["schedule.batch_factor=2", "schedule.lr_warmup_images=40", "schedule.lr_decay_images=60"],
}
PICTURES = {
    "sample.png": ["sample", "seeds=0-8"],
    "stage.png": ["sample", "seeds=0-8", "resolution=8", "alpha=0.3", "truncation=0.7", "zoom=2"],
    "slerp.png": ["interpolate", "seeds=[1,5,9]", "frames=9"],
    "lerp.png": ["interpolate", "seeds=[1,5,9]", "frames=9", "path=lerp"],
    "loop.webp": ["interpolate", "seeds=[1,5,9]", "frames=12", "path=loop"],
    "walk.gif": ["interpolate", "seeds=7", "frames=12", "path=walk", "grid=2x2"],
}

Digests = dict[str, str]


def main(out: str, before: str | None = None) -> int:
    """Write the digests of all cases to `out`; 1 if they differ from those in `before`."""
    with TemporaryDirectory(prefix="pggan-identity-") as name:
        folder = Path(name)
        draw_images(folder / "images")
        pggan("prepare", f"source={folder / 'images'}", f"dest={folder / 'data'}", "max_resolution=16", "labels=true")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = dict(pool.map(lambda case: (case[0], digests_of_run(folder, *case)), cases().items()))
        found["resumed"] = digests_of_resumed_run(folder)
    Path(out).write_text(json.dumps(found, indent=1, sort_keys=True))
    if before is None:
        return 0
    earlier = json.loads(Path(before).read_text())
    names = sorted({*found, *earlier})
    differing = {name: differences(earlier.get(name, {}), found.get(name, {})) for name in names}
    for name in names:
        if differing[name]:
            print(f"{name}: {', '.join(differing[name][:5])} …")
    print(f"{sum(not parts for parts in differing.values())} of {len(names)} cases are the same")
    return int(any(differing.values()))


def cases() -> dict[str, list[str]]:
    """The overrides of every run by its name."""
    found = {}
    for loss, precision, end, ranks in product(("wgan_gp", "logistic", "relativistic"), ("fp32", "bf16"), ENDS, RANKS):
        keys = [f"loss={loss}", f"precision={precision}", f"schedule.total_images={ENDS[end]}", *RANKS[ranks]]
        found[f"{loss} {precision} {end} {ranks}"] = keys
    for name, keys in OTHERS.items():
        found[name] = ["devices=cpu", "precision=fp32", "schedule.total_images=256", *keys]
    return found


def digests_of_run(folder: Path, name: str, keys: list[str]) -> Digests:
    """Of the weights and moments at the end of a run, and of its grids."""
    run_dir = folder / name.replace(" ", "_")
    pggan("train", f"data.path={folder / 'data'}", f"run_dir={run_dir}", *SMALL, *keys)
    checkpoint = sorted((run_dir / "checkpoints").iterdir())[-1]
    grids = {file.name: picture_digest(file) for file in sorted((run_dir / "samples").glob("*.png"))}
    return tensor_digests(checkpoint) | grids


def digests_of_resumed_run(folder: Path) -> Digests:
    """Of a run that stopped once, and of what is drawn from it."""
    run_dir, keys = folder / "resumed", [f"data.path={folder / 'data'}", "devices=cpu", *SMALL]
    for images in (128, 256):
        pggan("train", f"run_dir={run_dir}", *keys, f"schedule.total_images={images}")
    for file, (command, *arguments) in PICTURES.items():
        pggan(command, f"run={run_dir}", f"out={folder / file}", *arguments)
    pictures = {file: picture_digest(folder / file) for file in PICTURES}
    return tensor_digests(sorted((run_dir / "checkpoints").iterdir())[-1]) | pictures


def tensor_digests(checkpoint: Path) -> Digests:
    """Of the bytes of every tensor of a checkpoint."""
    found = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                found[f"{path.stem}/{name}"] = hashlib.sha256(file.get_tensor(name).tobytes()).hexdigest()[:16]
    return found


def picture_digest(path: Path) -> str:
    """Of the pixels of all frames."""
    with Image.open(path) as image:
        pixels = b"".join(frame.convert("RGB").tobytes() for frame in ImageSequence.Iterator(image))
    return hashlib.sha256(pixels).hexdigest()[:16]


def differences(before: Digests, after: Digests) -> list[str]:
    """The names whose digests differ, or which are there on one side only."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def draw_images(folder: Path) -> None:
    """45 images of smooth noise in three classes."""
    random = np.random.default_rng(5)
    for label, number in product("abc", range(15)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8))
        small.resize((64, 64), Image.Resampling.BICUBIC).save(folder / label / f"{number}.png")


def pggan(*arguments: str) -> None:
    """Run a command of this checkout, on one thread per rank."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", "pggan", *arguments]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    if ended.returncode:
        raise SystemExit(f"{' '.join(arguments)}\n{ended.stderr}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
