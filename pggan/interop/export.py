"""Writes a generator as safetensors, as ONNX, as a Hugging Face folder or as a web page."""

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pggan.checkpoints.generator_file import GENERATOR_FILE, describe_generator, save_generator, stated_in
from pggan.config.commands import ExportConfig
from pggan.core.atomic_io import atomic_directory, atomic_write
from pggan.core.errors import UserError
from pggan.core.process import __version__
from pggan.core.text import NEXT, next_command
from pggan.networks.networks import count_parameters
from pggan.sampling.files import check_output, save_picture
from pggan.sampling.images import contact_sheet
from pggan.sampling.marks import mark_line
from pggan.sampling.trained_generator import TrainedGenerator, load

SEEDS = "0-15"
COLUMNS = 4
CARD = """---
library_name: pggan
pipeline_tag: unconditional-image-generation
{licence}tags: [gan, progressive-gan]
---

# {name}

The generator of a progressive GAN ([Karras et al., ICLR 2018](https://arxiv.org/abs/1710.10196)), for `pggan`.

![Images of seeds 0 to 15](samples.png)

These images are not selected: they have the seeds 0 to 15.

## Use

```python
import pggan

generator = pggan.from_pretrained("{name}")  # or the path of this folder
generator.sample(seeds=[1, 2, 3])[0].save("face.png")
```

A seed always gives the same image. `generator.safetensors` holds no code.

## Facts

| | |
|---|---|
| drawn by default | {g.resolution}x{g.resolution} pixels, alpha {g.alpha:g} |
| resolutions | {resolutions} |
| channels | {a.channels} |
| latent size | {a.latent_size} |
| classes | {classes} |
| parameters | {parameters:,} |
| images shown in training | {g.images:,} |

## Training data

{statement}
"""


def run(config: ExportConfig) -> int:
    """Export the generator that `config.run` names, in the format `config.format`; returns the exit code."""
    given, out = load(config.run, "cpu", config.checkpoint), Path(config.out)
    settings = given.settings(resolution=config.resolution, alpha=config.alpha)
    stated = provenance(config) | {"resolution": settings.resolution, "alpha": float(settings.alpha)}
    generator = TrainedGenerator(replace(given.loaded, **stated))
    what = f"{out}: {generator.resolution}x{generator.resolution}, alpha {generator.alpha:g}"
    is_file = config.format in ("safetensors", "onnx")
    check_output(config.out, (f".{config.format}",) if is_file else ())
    if is_file:
        out.parent.mkdir(parents=True, exist_ok=True)
    elif out.exists() and (not out.is_dir() or any(out.iterdir()) or out.is_mount() or out.samefile("")):
        remedy = "Set out= to a new or empty directory (not the working directory), or first remove the files in out=."
        raise UserError(f"out={out} exists.", remedy)
    match config.format:
        case "safetensors":
            save_generator(generator.loaded, out)
            print(what)
            print(next_command("sample", "seeds=0-63", run=out))
        case "onnx":
            with naming_the_extra():
                from pggan.interop.onnx_graph import build
            graph, difference = build(generator.loaded)
            with atomic_write(out) as temporary:
                temporary.write_bytes(graph)
            print(f"{what}; pixels (-1 to 1) differ from PyTorch's by up to {difference:.1e}")
            labels = f" and one-hot labels [N, {generator.num_classes}]" if generator.num_classes else ""
            latents = f"latents [N, {generator.latent_size}] from N(0, 1){labels}"
            print(f"{NEXT} run the file in another program, such as ONNX Runtime, on {latents}")
        case "hf":
            write_folder(generator, out, mark_line(config.marks, config.run, f"seeds={SEEDS}"))
            print(f"{out}: a folder with weights, configuration, sample images and a model card")
            print(f"{NEXT} hf upload USER/NAME {shlex.quote(config.out)}")
        case "web":
            with naming_the_extra():
                from pggan.interop.web import write_web
            difference = write_web(generator, config)
            megabytes = sum(file.stat().st_size for file in out.rglob("*")) / 2**20
            print(f"{out}: {megabytes:.1f} MB of static files; pixels differ from PyTorch's by {difference:.1e}")
            print("To publish it, upload the folder to GitHub Pages or a static Hugging Face Space.")
            print(f"{NEXT} python -m http.server --bind 127.0.0.1 --directory {shlex.quote(config.out)}")
    return 0


@contextmanager
def naming_the_extra() -> Iterator[None]:
    """Turn an ImportError in the `with` block into a UserError that says how to install the missing package."""
    try:
        yield
    except ImportError as error:
        raise UserError(f"This needs the package {error.name}.", 'Install it: pip install "pggan[export]".') from error


def provenance(config: ExportConfig) -> dict[str, Any]:
    """Return the licence and the statement on training data in `config`; raises UserError for a malformed licence."""
    if config.license is not None and not re.fullmatch(r"[\w.+-]+", config.license):  # The licence goes into YAML.
        remedy = "Give a licence's identifier on Hugging Face, or license=other with an explanation in data_statement=."
        raise UserError(f"license={config.license} is not the identifier of a licence.", remedy)
    return stated_in(vars(config))


def write_folder(generator: TrainedGenerator, folder: Path, mark: str | None = None) -> None:
    """Atomically write a folder with a generator's weights, configuration, sample images and model card."""
    samples = contact_sheet(generator.render(generator.latents(SEEDS)), COLUMNS, generator.resolutions[-1])
    with atomic_directory(folder) as temporary:
        save_generator(generator.loaded, temporary / GENERATOR_FILE)
        about = {"library_name": "pggan", "pggan_version": __version__, **describe_generator(generator.loaded)}
        (temporary / "config.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")
        (temporary / "README.md").write_text(model_card(generator, folder.name), encoding="utf-8")
        save_picture(samples, temporary / "samples.png", mark)


def from_pretrained(name: str | Path, *, revision: str | None = None, device: str = "auto") -> TrainedGenerator:
    """Load a generator from a folder that `pggan export format=hf` wrote, or from a Hugging Face repository USER/NAME.

    Args: revision: a branch, tag or commit of the repository; device: auto, cpu, cuda or mps.
    Raises UserError if there is no such folder or repository, or if it holds no valid generator file.
    """
    if Path(name).is_dir():
        return load(name, device)
    with naming_the_extra():
        from huggingface_hub import errors, hf_hub_download
    try:
        path = hf_hub_download(str(name), GENERATOR_FILE, revision=revision)
        with suppress(OSError, errors.HfHubHTTPError):  # optional file: the Hub counts downloads of config.json
            hf_hub_download(str(name), "config.json", revision=revision)
    except (OSError, ValueError, errors.HfHubHTTPError) as error:
        remedy = "Give a folder that `pggan export format=hf` has written, or USER/NAME of a repository on the Hub."
        raise UserError(f"There is no generator at {name}: {error}", remedy) from error
    return load(path, device)


def model_card(generator: TrainedGenerator, name: str) -> str:
    """Return the text of a generator's model card, which is the file README.md on Hugging Face."""
    return CARD.format(
        g=generator,
        a=generator.network.architecture,
        name=name,
        licence=f"license: {generator.loaded.license}\n" if generator.loaded.license else "",
        resolutions=", ".join(map(str, generator.resolutions)),
        classes=", ".join(generator.class_names) or generator.num_classes,
        parameters=count_parameters(generator.network),
        statement=generator.loaded.data_statement or "**Not stated** by those who exported this generator.",
    )
