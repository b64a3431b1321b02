"""The model card of a generator: what it draws, how to use it, how good it is, and what it was trained with."""

from pathlib import Path
from typing import Any

from pggan.core.atomic_io import read_json
from pggan.core.errors import UserError
from pggan.core.formatting import three_digits
from pggan.networks.networks import count_parameters
from pggan.sampling.trained_generator import TrainedGenerator

MAX_BYTES = 2**24  # of an evaluation.json, which takes some kilobytes
SAMPLES = "samples.png"


def read_evaluation(path: Path) -> dict[str, Any]:
    """An evaluation.json of `pggan evaluate`; raises UserError unless it is one."""
    try:
        found = read_json(path, MAX_BYTES)
        for one in found["evaluations"]:
            if not all(isinstance(value, int | float) for value in one["metrics"].values()):
                raise ValueError("a metric is not a number")
            int(one["images"]), int(one["resolution"]), float(one["alpha"])
        str(found["data"]["images"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = "Give the evaluation.json that `pggan evaluate out=…` has written."
        raise UserError(f"evaluation={path} is not an evaluation: {error}.", remedy) from error
    return found


def model_card(generator: TrainedGenerator, name: str, evaluation: dict[str, Any] | None) -> str:
    """The README.md of a folder, for a generator called `name`: Markdown with the front matter of Hugging Face.

    Args: evaluation: of `read_evaluation`.
    """
    a, network = generator.network.architecture, generator.network
    licence = [f"license: {generator.loaded.license}"] if generator.loaded.license else []
    stage = f"{generator.resolution}x{generator.resolution} pixels, alpha {generator.alpha:g}"
    names = f": {', '.join(generator.class_names)}" if generator.class_names else ""
    classes = f"| classes | {a.num_classes}{names} |\n" if a.num_classes else ""
    lines = "\n".join(
        [
            "library_name: pggan",
            "pipeline_tag: unconditional-image-generation",
            *licence,
            "tags: [gan, progressive-gan]",
        ]
    )
    statement = generator.loaded.data_statement or "**Not stated** by those who exported this generator."
    return f"""---
{lines}
---

# {name}

The generator of a progressive GAN ([Karras et al., ICLR 2018](https://arxiv.org/abs/1710.10196)), for `pggan`.

![Images of seeds 0 to 15]({SAMPLES})

These images are not selected: they are those of the seeds 0 to 15.

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
| drawn by default | {stage} |
| resolutions | {", ".join(map(str, generator.resolutions))} |
| channels | {a.channels} |
| latent size | {a.latent_size} |
{classes}| parameters | {count_parameters(network):,} |
| images shown in training | {f"{generator.images:,}" if generator.images else "not known"} |

## Quality

{_quality(evaluation, generator)}

## Training data

{statement}
"""


def _quality(evaluation: dict[str, Any] | None, generator: TrainedGenerator) -> str:
    """A table of metrics, of the checkpoint and stage that were exported; a sentence when there is none."""
    stage = {"images": generator.images, "resolution": generator.resolution, "alpha": generator.alpha}
    same = [one for one in (evaluation or {}).get("evaluations", []) if all(one[key] == stage[key] for key in stage)]
    if evaluation is None or not same:
        return "Not measured."
    rows = [f"| {name} | {_shown(value)} |" for name, value in same[-1]["metrics"].items()]
    about = f"Measured with `pggan evaluate` beside {evaluation['data']['images']:,} images of the data set."
    return "\n".join([about, "", "| metric | value |", "|---|---|", *rows])


def _shown(value: float) -> str:
    return f"-{three_digits(-value)}" if value < 0 else three_digits(value)
