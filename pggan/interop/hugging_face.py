"""A generator as a folder in the form of Hugging Face, with a model card, and from the Hub."""

import json
from pathlib import Path

from pggan.checkpoints.generator_file import GENERATOR_FILE, describe_generator, save_generator
from pggan.core.atomic_io import atomic_directory
from pggan.core.errors import UserError
from pggan.core.process import __version__
from pggan.core.text import three_digits
from pggan.interop.comparison import require_empty
from pggan.networks.networks import count_parameters
from pggan.sampling.images import contact_sheet, save_png
from pggan.sampling.trained_generator import TrainedGenerator, load

SAMPLES = "samples.png"
SEEDS = "0-15"  # of the samples
COLUMNS = 4
NOT_MEASURED = "Not measured."
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
{facts}

## Quality

{quality}

## Training data

{statement}
"""


def write_folder(generator: TrainedGenerator, folder: Path, evaluation: str | None) -> None:
    """Write weights, configuration, samples and model card of a generator; all files or none.

    Args: evaluation: an evaluation.json of `pggan evaluate`.
    """
    require_empty(folder)
    quality = NOT_MEASURED if evaluation is None else measured(Path(evaluation), generator)
    samples = contact_sheet(generator.render(generator.latents(SEEDS)), COLUMNS, generator.resolutions[-1])
    with atomic_directory(folder) as temporary:
        save_generator(generator.loaded, temporary / GENERATOR_FILE)
        about = {"library_name": "pggan", "pggan_version": __version__, **describe_generator(generator.loaded)}
        (temporary / "config.json").write_text(json.dumps(about, indent=1) + "\n")
        (temporary / "README.md").write_text(model_card(generator, folder.name, quality), encoding="utf-8")
        save_png(samples, temporary / SAMPLES)


def from_pretrained(name: str | Path, *, revision: str | None = None, device: str = "auto") -> TrainedGenerator:
    """The generator of a folder of `pggan export format=hf`, or of a repository USER/NAME of the Hugging Face Hub.

    Args: revision: a branch, tag or commit of the repository; device: as of `load`.
    Raises UserError when there is no such folder or repository, or no valid generator in it.
    """
    if Path(name).is_dir():
        return load(str(name), device)
    try:
        from huggingface_hub import errors, hf_hub_download
    except ImportError as error:
        remedy = 'Install it: pip install "pggan[export]". A folder on this machine needs none.'
        raise UserError("The Hugging Face Hub needs huggingface-hub.", remedy) from error
    try:
        path = hf_hub_download(str(name), GENERATOR_FILE, revision=revision)
    except (OSError, ValueError, errors.HfHubHTTPError) as error:
        remedy = "Give a folder that `pggan export format=hf` has written, or USER/NAME of one on the Hub."
        raise UserError(f"There is no generator at {name}: {error}", remedy) from error
    return load(path, device)


def measured(path: Path, generator: TrainedGenerator) -> str:
    """The table of an evaluation.json of `pggan evaluate`, for the checkpoint and stage of `generator`.

    Raises UserError unless it is one.
    """
    stage = {"images": generator.images, "resolution": generator.resolution, "alpha": generator.alpha}
    try:
        found = json.loads(path.read_text())
        same = [one["metrics"] for one in found["evaluations"] if all(one[key] == stage[key] for key in stage)]
        rows = [f"| {key} | {'-' * (value < 0)}{three_digits(abs(value))} |" for key, value in same[-1].items()]
        about = f"Measured with `pggan evaluate` beside {found['data']['images']:,} images of the data set."
    except IndexError:
        return NOT_MEASURED
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = "Give the evaluation.json that `pggan evaluate out=…` has written."
        raise UserError(f"evaluation={path} is not an evaluation: {error}.", remedy) from error
    return "\n".join([about, "", "| metric | value |", "|---|---|", *rows])


def model_card(generator: TrainedGenerator, name: str, quality: str) -> str:
    """The README.md of a folder, for a generator called `name`: Markdown with the front matter of Hugging Face.

    Args: quality: what is known of it.
    """
    loaded, a = generator.loaded, generator.network.architecture
    names = f": {', '.join(generator.class_names)}" if generator.class_names else ""
    facts = {
        "drawn by default": f"{generator.resolution}x{generator.resolution} pixels, alpha {generator.alpha:g}",
        "resolutions": ", ".join(map(str, generator.resolutions)),
        "channels": a.channels,
        "latent size": a.latent_size,
        **({"classes": f"{a.num_classes}{names}"} if a.num_classes else {}),
        "parameters": f"{count_parameters(generator.network):,}",
        "images shown in training": f"{generator.images:,}" if generator.images else "not known",
    }
    return CARD.format(
        name=name,
        licence=f"license: {loaded.license}\n" if loaded.license else "",
        facts="\n".join(f"| {key} | {value} |" for key, value in facts.items()),
        quality=quality,
        statement=loaded.data_statement or "**Not stated** by those who exported this generator.",
    )
