"""Keys and choices of earlier versions, and what to do instead: looked up where a key or a choice is unknown."""

from collections.abc import Mapping
from typing import Any

from pggan.core.errors import UserError

# A key, or group=choice, of any command: one short sentence that says what to do instead.
WITHDRAWN = {
    "schedule.max_growth_share": "Leave it out: with hours=, growth becomes shorter where it would be late.",
    "augmentation.blit": "Leave it out: ADA has all of its transformations.",
    "augmentation.colors": "Leave it out: ADA has all of its transformations.",
    "augmentation.geometry": "Leave it out: ADA has all of its transformations.",
    "augmentation.interval": "Leave it out: p is adapted every four updates.",
    "augmentation=diffaugment": "augmentation=ada takes its place.",
    "axis": "Leave it out: images shown pass evenly.",
    "candidates": "Leave it out: the nearest of 1024 seeds are moved.",
    "captions": "Leave it out: sheets of directions and projections have captions.",
    "compute.activation_checkpointing": "Leave it out: a smaller compute.micro_batch_size= saves memory, too.",
    "compute.compile": "Leave it out: compiled steps were not faster.",
    "compute.convolution": "compute.kernels=auto takes the fastest, compute.kernels=reference the plainest.",
    "compute.penalty": "Leave it out: penalties are differentiated twice.",
    "constant_speed": "Leave it out: films move at constant speed.",
    "convolutions": "Leave it out: against=true measures the plainest beside it.",
    "data.device_budget_mib": "Leave it out: levels of up to a quarter of a GPU's free memory stay there.",
    "data.style": "Leave it out: avatars are DiceBear's toon-head.",
    "data.verify": "Leave it out: files are always compared with their checksums.",
    "distance": "Leave it out: images are compared by Laplacian pyramids.",
    "distributed.local_addr": "Leave it out: it is the address by which a machine reaches the rendezvous.",
    "distributed.rdzv_timeout_seconds": "Leave it out: the machines wait five minutes for each other.",
    "ease": "Leave it out: films move at constant speed.",
    "evaluation.best": "Leave it out: the first of evaluation.metrics that has an order decides.",
    "evaluation.max_share": "Leave it out: evaluations take 5 % of the time, or come at evaluation.interval_images=.",
    "evaluation.weights": "Leave it out: Inception's weights are fetched, or looked for in the folder of torch.hub.",
    "gradients.clip": "Leave it out: for Adam, clipping changes little.",
    "grow_from": "pggan timelapse shows the growth of the training.",
    "hold": "Leave it out: films move at constant speed.",
    "host": "Leave it out, and reach the page through a tunnel: ssh -L 8765:127.0.0.1:8765.",
    "keep": "Leave it out: prepare keeps the whole square; of checkpoints it is checkpoint.keep=.",
    "loss.drift": "Leave it out: it is 0.001, as in the paper.",
    "loss.penalty_resolution": "Leave it out: the norm is taken at the final resolution, as in the official code.",
    "method": "Leave it out: directions are principal components of the first features.",
    "model.features_weights": "Leave it out: model.features=efficientnet-lite0 comes with its weights.",
    "model.fmap_decay": "Leave it out: feature maps halve with every doubling, as in the paper.",
    "model.latent_size": "Leave it out: a latent has as many numbers as the widest layer has feature maps.",
    "model.noise": "Leave it out: G adds no noise.",
    "modes": "Leave it out: steps are captured where there are CUDA graphs (compute.cuda_graphs).",
    "optimizer": "Leave it out: it is Adam as in the paper.",
    "optimizer.beta1": "Leave it out: it is 0, as in the paper.",
    "optimizer.beta2": "Leave it out: it is 0.99, as in the paper.",
    "optimizer.epsilon": "Leave it out: it is 1e-8, as in the paper.",
    "optimizer.reset_at_phase": "Leave it out: each phase begins with new moments, as in the official code.",
    "penalties": "Leave it out: penalties are differentiated twice.",
    "precisions": "Give one precision=.",
    "private": "Upload the folder with hf upload --private.",
    "push": "Upload the folder: hf upload USER/NAME FOLDER.",
    "report": "Leave it out: the report is report.json in the pyramid.",
    "scaling": "Leave it out: pixels are repeated.",
    "schedule.learning_rate_scaling": "Leave it out: the learning rates grow with the root of schedule.batch_factor.",
    "smoothness": "Leave it out: a walk is smoothed over 15 frames.",
    "starts": "Leave it out: four latents are moved.",
    "trace": "Leave it out: debug=profile of a training run writes traces.",
    "tflops": "Leave it out: calibrate=true measures, device= predicts a card.",
}


def withdrawal(name: str) -> UserError | None:
    """The error for the key, or group=choice, `name` where it is one of WITHDRAWN."""
    return UserError(f"{name} is no longer there.", WITHDRAWN[name]) if name in WITHDRAWN else None


def without_withdrawn(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The nested `values` of an earlier version without its keys that are withdrawn."""
    return {
        key: without_withdrawn(value, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in values.items()
        if f"{prefix}{key}" not in WITHDRAWN
    }


# The withdrawn keys that changed what a run learns, and what the code does today.
TODAY = {
    "augmentation.blit": True,
    "augmentation.colors": True,
    "augmentation.geometry": True,
    "augmentation.interval": 4,
    "gradients.clip": None,
    "loss.drift": 0.001,
    "loss.penalty_resolution": "final",
    "optimizer.beta1": 0.0,
    "optimizer.beta2": 0.99,
    "optimizer.epsilon": 1e-8,
    "optimizer.reset_at_phase": True,
    "schedule.learning_rate_scaling": "sqrt",
}


def lost_values(before: Mapping[str, Any]) -> list[str]:
    """A sentence on each value of an earlier run, by its full key, that can no longer be had."""
    lost = [key for key, today in TODAY.items() if key in before and before[key] != today]
    return [f"No longer {key}={before[key]}: {WITHDRAWN[key].removeprefix('Leave it out: ')}" for key in lost]
