"""Whether a change leaves every bit as it was: short runs, and a digest of each tensor, picture and number.

    git worktree add ../before COMMIT
    python -m benchmarks.identity before.json --checkout ../before
    python -m benchmarks.identity after.json --against before.json    # names what differs
    python -m benchmarks.identity wide.json --only wide               # the cases whose names have `wide` in them

Covers all losses, precisions and gradient reductions, elastic training, labels, wide layers, pretrained features,
augmentation, a resumed run, a prepared pyramid, `sample`, `interpolate`, `evaluate`, an ONNX file and the recipes that
`hours=` chooses; on one rank and on two.  Five to ten minutes on two cores.  Bits depend on the processor and on the
versions of the libraries, so both files come from one machine.

`benchmarks/results/2026-11-27_identity_5cf4f79_xeon_avx512.json` has the digests of 5cf4f79 (Intel Xeon with AVX-512,
PyTorch 2.15).  On purpose, these differ since: `reference` (the plain twins), `recipes`, `walk.gif`, `loop.webp`, fakes
of `bilateral` (drawn with twice the passes), pretrained features (heads with a loss of their own), and R1 and R2 below
the final resolution (gamma is divided by 4 per level; without this, all of them have the bits of 5cf4f79).
"""

import argparse
import hashlib
import json
import os
import re
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
    "schedule.fade_images=48",
    "schedule.batch=16",
    "schedule.total_images=256",  # 16x16 is faded in from 192 to 240
    "evaluation.metrics=[]",  # their places depend on the clock
    "monitor.grid=4x2",
    "precision=fp32",
    "devices=cpu",
]
RANKS = {
    "1 elastic": ["elastic=true"],
    "2 bf16": ["devices=cpu:2", "gradients=bf16"],
    "2 dgc": ["devices=cpu:2", "gradients=dgc"],
    "2 elastic": ["devices=cpu:2", "elastic=true"],
}
WIDE = ["model.fmap_base=8192", "model.fmap_max=128", "schedule.final_resolution=8", "schedule.total_images=112"]
FACES = ["schedule.final_resolution=32", "schedule.total_images=304", "loss=logistic"]
OTHERS = {
    "fading": ["schedule.total_images=200"],
    "labels": ["data.labels=true"],
    "labels logistic 2": ["data.labels=true", "loss=logistic", "devices=cpu:2"],
    "fp16": ["precision=fp16"],
    "micro-batches": ["compute.micro_batch_size=8"],
    "unfused": ["model.resampling=unfused"],
    "learning rates": ["schedule.batch_factor=2", "schedule.lr_warmup_images=40", "schedule.lr_decay_images=60"],
    "reference": ["compute.kernels=reference"],
    "wide": WIDE,
    "wide unfused": [*WIDE, "model.resampling=unfused", "loss=logistic"],
    "wide batch 4": [*WIDE, "schedule.batch=4", "schedule.total_images=100"],
    "wide reference": [*WIDE, "compute.kernels=reference"],
    "wide elastic 2": [*WIDE, "elastic=true", "devices=cpu:2"],
    "wide micro-batches": [*WIDE, "compute.micro_batch_size=8"],
    "ada": ["augmentation=ada", "augmentation.rampup_images=200", "loss=logistic"],
    "ada wgan_gp": ["augmentation=ada", "augmentation.rampup_images=200"],
    "ada relativistic 2": ["augmentation=ada", "augmentation.rampup_images=200", "loss=relativistic", "devices=cpu:2"],
    "features": [*FACES, "model.features=efficientnet-lite0", "model.features_from=32"],
    "bilateral": [*FACES, "model.bilateral=2", "model.residual=true"],
    "blur": ["model.blur=true", "loss=logistic", "model.residual=true"],
}
PICTURES = {
    "sample.png": ["sample", "seeds=0-8"],
    "stage.png": ["sample", "seeds=0-8", "resolution=8", "alpha=0.3", "truncation=0.7", "zoom=2"],
    "slerp.png": ["interpolate", "seeds=[1,5,9]", "frames=9"],
    "lerp.png": ["interpolate", "seeds=[1,5,9]", "frames=9", "path=lerp"],
    "loop.webp": ["interpolate", "seeds=[1,5,9]", "frames=12", "path=loop"],
    "walk.gif": ["interpolate", "seeds=7", "frames=12", "path=walk", "grid=2x2"],
}
METRICS = "metrics=[swd,ms_ssim,kid,fid,precision_recall]"
SHARDS = ".bin"
LATENT_SIZE = 16
# Keys of checkouts that did not have `compute.kernels`: the convolutions of these cases in the words of then.
BEFORE_KERNELS = {"auto": "compute.convolution=heuristic", "reference": "compute.convolution=native"}

Digests = dict[str, str]


def main() -> int:
    """Write the digests of all cases; 1 if they differ from earlier ones."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--checkout", type=Path, default=Path(), help="of the program that is run")
    parser.add_argument("--against", type=Path, help="digests to compare with")
    parser.add_argument("--only", default="", help="a regular expression: the cases whose names have it")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="pggan-identity-") as name:
        found = Cases(Path(name), options.checkout.resolve()).digests(re.compile(options.only))
    options.out.write_text(json.dumps(found, indent=1, sort_keys=True))
    if options.against is None:
        return 0
    earlier = json.loads(options.against.read_text())
    differing = {name: differences(earlier.get(name, {}), found[name]) for name in found}
    for name, parts in differing.items():
        if parts:
            print(f"{name}: {len(parts)} of {len(found[name])}: {', '.join(parts[:6])} …")
    print(f"{sum(not parts for parts in differing.values())} of {len(found)} cases are the same")
    return int(any(differing.values()))


def differences(before: Digests, after: Digests) -> list[str]:
    """The names whose digests differ, or which are there on one side only."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def runs() -> dict[str, list[str]]:
    """The overrides of every run by its name."""
    found = {}
    for loss, precision, ranks in product(("wgan_gp", "logistic", "relativistic"), ("fp32", "bf16"), ("cpu", "cpu:2")):
        found[f"{loss} {precision} {ranks}"] = [f"loss={loss}", f"precision={precision}", f"devices={ranks}"]
    for loss, (name, keys) in product(("wgan_gp", "relativistic"), RANKS.items()):
        found[f"{loss} {name}"] = [f"loss={loss}", *keys]
    return found | OTHERS


class Cases:
    """The runs and commands of one checkout, in a folder that is removed afterwards."""

    def __init__(self, folder: Path, checkout: Path) -> None:
        """Args: checkout: the root of the repository whose program is run."""
        self.folder, self.checkout = folder, checkout
        self.has_kernels = "\n  kernels:" in (checkout / "configs/train.yaml").read_text()

    def digests(self, only: re.Pattern[str]) -> dict[str, Digests]:
        """The digests of all cases that `only` finds, by name."""
        draw_images(self.folder / "images")
        for size in (16, 32):
            dest = f"dest={self.folder / f'data{size}'}"
            self.pggan("prepare", f"source={self.folder / 'images'}", dest, f"max_resolution={size}", "labels=true")
        names = {name: keys for name, keys in runs().items() if only.search(name)}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = dict(zip(names, pool.map(self.run, names, names.values()), strict=True))
        others = {"pyramid": self.pyramid, "resumed": self.resumed, "recipes": self.recipes}
        return found | {name: case() for name, case in others.items() if only.search(name)}

    def run(self, name: str, keys: list[str]) -> Digests:
        """Of the weights and moments at the end of a run, and of its grids."""
        run_dir = self.folder / name.replace(" ", "_")
        self.train(run_dir, keys)
        grids = {file.name: picture_digest(file) for file in sorted((run_dir / "samples").glob("*.png"))}
        return tensor_digests(sorted((run_dir / "checkpoints").iterdir())[-1]) | grids

    def train(self, run_dir: Path, keys: list[str]) -> None:
        """Train with the `keys` that differ from SMALL."""
        data = "data32" if "schedule.final_resolution=32" in keys else "data16"
        kernels = "reference" if "compute.kernels=reference" in keys else "auto"
        if not self.has_kernels:
            keys = [key for key in keys if "kernels" not in key] + [BEFORE_KERNELS[kernels]]
        self.pggan("train", f"data.path={self.folder / data}", f"run_dir={run_dir}", *SMALL, *keys)

    def pyramid(self) -> Digests:
        """Of the bytes of the shards of a prepared pyramid, and of its labels."""
        shards = [path for path in sorted((self.folder / "data16").rglob("*")) if path.suffix == SHARDS]
        assert shards, f"there is no shard *{SHARDS}"
        return {path.name: digest(path.read_bytes()) for path in shards}

    def resumed(self) -> Digests:
        """Of a run that stopped once, and of what commands make of it."""
        run_dir, folder = self.folder / "resumed", self.folder
        for images in (128, 256):
            self.train(run_dir, [f"schedule.total_images={images}"])
        for file, (command, *arguments) in PICTURES.items():
            self.pggan(command, f"run={run_dir}", f"out={folder / file}", *arguments)
        found = {file: picture_digest(folder / file) for file in PICTURES}
        words = [f"data={folder / 'data16'}", METRICS, "count=40", "json=true"]
        values = re.findall(r'"([^"]*@[^"]*)": (-?[0-9.e+-]+)', self.pggan("evaluate", f"run={run_dir}", *words))
        assert len(values) >= METRICS.count(","), f"too few numbers: {values}"
        found |= {f"evaluate {name}": value for name, value in values}
        self.pggan("export", f"run={run_dir}", "format=onnx", f"out={folder / 'faces.onnx'}")
        found["onnx"] = onnx_digest(folder / "faces.onnx")
        return tensor_digests(sorted((run_dir / "checkpoints").iterdir())[-1]) | found

    def recipes(self) -> Digests:
        """The keys that `hours=` chooses where every step takes a fixed time; as text, to be read."""
        printed = self.python("benchmarks/fixed_recipes.py")
        return dict(line.split("\t") for line in printed.splitlines())

    def pggan(self, *arguments: str) -> str:
        """Run a command of the checkout, on one thread per rank; returns what it prints."""
        return self.python("-m", "pggan", *arguments)

    def python(self, *arguments: str) -> str:
        """Run a Python program in the checkout, on one thread."""
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": "."}
        command = [sys.executable, *arguments]
        ended = subprocess.run(command, cwd=self.checkout, env=variables, capture_output=True, text=True, check=False)  # noqa: S603 - our own
        if ended.returncode:
            raise SystemExit(f"{' '.join(arguments)}\n{ended.stderr}")
        return ended.stdout


def digest(content: bytes) -> str:
    """The first 16 digits of the SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


def tensor_digests(checkpoint: Path) -> Digests:
    """Of the bytes of every tensor of a checkpoint, by component and name."""
    found = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                full = name if path.stem in ("weights", "state") else f"{path.stem}/{name}"
                found[full] = digest(file.get_tensor(name).tobytes())
    return found


def picture_digest(path: Path) -> str:
    """Of the pixels of all frames."""
    with Image.open(path) as image:
        return digest(b"".join(frame.convert("RGB").tobytes() for frame in ImageSequence.Iterator(image)))


def onnx_digest(path: Path) -> str:
    """Of the images that an ONNX file makes of fixed latents, in 255 steps."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    latents = np.random.default_rng(1).standard_normal((4, LATENT_SIZE), np.float32)
    feeds = {each.name: latents if "latent" in each.name else np.float32(1) for each in session.get_inputs()}
    images = np.asarray(session.run(None, feeds)[0])
    return digest(np.rint(images * 127.5 + 127.5).clip(0, 255).astype(np.uint8).tobytes())


def draw_images(folder: Path) -> None:
    """45 images of smooth noise in three classes."""
    random = np.random.default_rng(5)
    for label, number in product("abc", range(15)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8))
        small.resize((64, 64), Image.Resampling.BICUBIC).save(folder / label / f"{number}.png")


if __name__ == "__main__":
    sys.exit(main())
