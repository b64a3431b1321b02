"""The tags of TensorBoard: what each one means, and in which charts of Custom Scalars its curve stands.

A tag has one meaning: a curve's first part says what it is about, and only pictures begin with `images/`.
"""

import re

IMAGE_QUALITY = r"metrics/(?![a-z_]+_(floor|reals))[a-z_]+(/[a-z]+)?@.*"  # neither of reals nor of one level

# What a tag means; the first pattern that matches counts.
DESCRIPTIONS = {
    r"[DG]/loss": "What the network minimises: the sum of its terms, mean per image since the last tick.",
    r"D/wasserstein": "Scores of fakes minus scores of reals (Wasserstein): below 0 where D tells them apart.",
    r"G/wasserstein": "Minus the scores of fakes (Wasserstein).",
    r"D/drift": "Penalty that keeps the scores of reals near 0.",
    r"D/loss_reals": "What D loses on reals; log 2 = 0.69 for a D that guesses.",
    r"D/loss_fakes": "What D loses on fakes; log 2 = 0.69 for a D that guesses.",
    r"G/loss_fakes": "What G loses on fakes: low where D takes them for reals.",
    r"[DG]/relativistic": "What the network loses on pairs of a real and a fake; log 2 = 0.69 for a D that guesses.",
    r"D/gradient_penalty": "Penalty on the norm of the gradient of D's score between reals and fakes.",
    r"D/r1": "Penalty on the gradient of D's score at reals.",
    r"D/r2": "Penalty on the gradient of D's score at fakes.",
    r"[DG]/class_loss_(reals|fakes)": "Cross-entropy of the classes that D sees in reals or fakes.",
    r"[DG]/gradient_norm": "Norm of the whole gradient of an update, mean since the last tick.",
    r"[DG]/gradient_norm_max": "Norm of the whole gradient, the largest since the last tick.",
    r"[DG]/skipped": "Updates since the last tick that were skipped, because a gradient was NaN or infinite.",
    r"[DG]/loss_scale": "Factor of the loss in half precision, which keeps small gradients from vanishing.",
    r"scores/reals": "D's scores of reals.",
    r"scores/fakes": "D's scores of fakes; where they reach those of reals, D can't tell them apart.",
    r"scores/interpolated": "D's scores of mixtures of a real and a fake, at which the penalty is taken.",
    r"score_histogram/(reals|fakes|interpolated)": "D's scores, image by image, in the last steps before the tick.",
    r"augment/p": "Probability of each transformation of ADA, adapted to augment/sign.",
    r"augment/sign": "How surely D tells reals from fakes: 0 by chance, 1 always; near 1 it knows reals by heart.",
    r"schedule/resolution": "Side of the images in training, in pixels.",
    r"schedule/growth": "Doublings so far: 0 at 4x4, 1 at 8x8; it rises in a fade and is level in a stable phase, so "
    "that each bend is the border of two phases.",
    r"schedule/alpha": "Weight of the newest layers, 0 to 1.",
    r"schedule/batch": "Images per update, over all ranks.",
    r"schedule/learning_rate_[gd]": "Learning rate of G or D.",
    r"speed/images_per_second": "Images shown per second since the last tick, over all ranks.",
    r"speed/memory_bytes": "The most memory held so far: of the device on CUDA, of the process elsewhere.",
    r"speed/eta_seconds": "Seconds left to the end of the schedule, as predicted at the tick.",
    r"speed/hours": "Hours of training so far.",
    r"speed/data_share": "Share of the time since the last tick spent on waiting for real images, 0 to 1.",
    r"speed/step_share": "Share of the time since the last tick spent on training steps, 0 to 1.",
    r"speed/overhead_share": "Share of the time since the last tick spent on grids, metrics, checkpoints and reports.",
    r"health/alarms": "Alarms that hold at this tick; train.log has their text.",
    r"health/reals_sign": "Share of reals with scores above 0 (relativistic loss: above a fake's) minus that below: "
    "near 1, D knows the reals by heart.",
    r"health/diversity": "Distance from a fake to the nearest other fake, divided by that of reals: about 1 is good.",
    r"alarms": "What went wrong and what to do, where an alarm was raised.",
    r"alarms/.*": "1 where this alarm was raised; train.log says what to do.",
    r"metrics/[a-z_]+_(floor|reals).*": "What the metric is of reals, which fakes can come near to.",
    r"metrics/.*": "Quality of the averaged generator's images, as `pggan evaluate` measures it.",
    r"images/neighbours": "Fakes beside their nearest training images: in the extractor's features, then in pixels.",
    r"images/reals": "Reals at the resolution that training takes up here.",
    r"images/final_reals": "The same reals at the final resolution.",
    r"images/fakes": "Images of the generator in training, of seeds 0, 1, 2 …",
    r"images/averaged_fakes": "Images of the averaged generator (EMA), which sampling uses, of the same seeds.",
    r"run/.*": "About this run.",
    r"phases": "The borders of the phases, at their image counts.",
    r"profile/.*": "What the recorded steps spent their time on; the trace lies in profile/.",
}

PHASES = {"growth: each bend is the border of two phases": ["^schedule/growth$"]}
# Categories of Custom Scalars, their charts, and patterns of the tags in each.
LAYOUT: dict[str, dict[str, list[str]]] = {
    "losses": {
        "losses": [r"^[DG]/loss$"],
        "terms of D": [r"^D/(wasserstein|loss_reals|loss_fakes|relativistic|class_loss_.*)$"],
    },
    "scores": {"scores: reals against fakes": [r"^scores/.*"]},
    "augmentation": {"p of ADA": ["^augment/p$"], "mean sign of D": ["^augment/sign$"]},
    "penalties": {"penalties": [r"^D/(gradient_penalty|r1|r2|drift)$"]},
    "quality": {"metrics and their floors": [r"^metrics/.*"]},
    "health": {
        "gradient norms": [r"^[DG]/gradient_norm(_max)?$"],
        "alarms, skipped updates": [r"^health/alarms$", r"^alarms/.*", r"^[DG]/skipped$"],
        "overfitting, diversity": ["^health/reals_sign$", "^health/diversity$"],
        "loss scale": [r"^[DG]/loss_scale$"],
    },
    "speed": {
        "images per second": ["^speed/images_per_second$"],
        "where the time goes": [r"^speed/.*_share$"],
        "memory, bytes": ["^speed/memory_bytes$"],
        "time left, seconds": ["^speed/eta_seconds$"],
    },
    "schedule": {
        "resolution": ["^schedule/resolution$"],
        "alpha": ["^schedule/alpha$"],
        "batch": ["^schedule/batch$"],
        "learning rates": ["^schedule/learning_rate_.*"],
    },
}


def description(tag: str) -> str:
    """The meaning of `tag`; empty for an unknown one."""
    return next((text for pattern, text in DESCRIPTIONS.items() if re.fullmatch(pattern, tag)), "")
