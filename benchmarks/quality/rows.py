"""The rows of the table: what is trained, on which images, for how long."""

from typing import NamedTuple

AVATARS, FEW_AVATARS, ORL = "avatars", "500 avatars", "ORL"
SMALL = ("kid", "precision_recall", "neighbours", "swd")  # metrics that show copies of training images, too
USUAL = ("kid", "swd", "ms_ssim")
JUDGES = ("efficientnet-lite0", "benchmarks.quality.nsfwjs:inception")  # one more than D looks at


class Row(NamedTuple):
    """One recipe on one data set, to the end of its schedule."""

    name: str
    question: str  # rows with the same one are compared, so they have the same data
    data: str
    keys: tuple[str, ...]
    metrics: tuple[str, ...] = USUAL
    extractors: tuple[str, ...] = ("efficientnet-lite0",)
    gpu: bool = False  # it would take a CPU too long


UNFILTERED = ("model.bilateral=0", "loss.reg_interval=8")  # measured before the recipes of avatars had the filter
AVATARS_32 = ("experiment=avatars_32",)
AVATARS_64 = ("experiment=avatars_64", "hours=1")  # its lengths, scaled to an hour
AVATARS_128 = (*AVATARS_64, "model.fmap_base=1024", "schedule.final_resolution=128", "schedule.lr_decay_images=5000")
GROWTH_128 = (  # a third of the hour
    "schedule.stable_images={4: 1500, 8: 2500, 16: 5000, 32: 6000, 64: 4000, 128: 30000}",
    "schedule.fade_images={8: 1500, 16: 3000, 32: 4000, 64: 4000, 128: 4000}",
)
ORL_64 = (  # three times its lengths
    "experiment=orl_64",
    "schedule.stable_images={4: 4500, 8: 9000, 16: 15000, 32: 24000, 64: 90000}",
    "schedule.fade_images={8: 4500, 16: 9000, 32: 15000, 64: 24000}",
    "schedule.lr_decay_images=75000",
)
ADA = ("augmentation=ada", "augmentation.rampup_images=60000")  # at most half of the run, as its p has to rise in it


def few_avatars(stable_images: str) -> tuple[str, ...]:
    """`avatars_32` on 500 avatars, with so many images per level and longer fades."""
    return (
        *AVATARS_32,
        "data.count=500",
        "data.mirror=false",
        f"schedule.stable_images={stable_images}",
        "schedule.fade_images={8: 6600, 16: 13200, 32: 22000}",
        "schedule.lr_decay_images=28600",
    )


# 4.4 times the lengths of avatars_32: before, D does not know 500 images by heart.
FEW = few_avatars("{4: 6600, 8: 11000, 16: 22000, 32: 205000}")
EVALUATED_OFTEN = (
    "evaluation.metrics=[kid,precision_recall]",
    "evaluation.interval_images=40000",
    "evaluation.count=500",
)
FEW_MILLION = (*few_avatars("{4: 6600, 8: 11000, 16: 22000, 32: 918600}"), *EVALUATED_OFTEN)
MILLION_ADA = ("augmentation=ada", "augmentation.rampup_images=200000")
FEW_EQUAL = "augmentation of 500 avatars, equal images"
FEW_MILLION_EQUAL = "augmentation of 500 avatars, a million images"
FEW_GPU = (  # ADA's paper at 32x32 (cfg=cifar of the official code): rates, batch and gamma; each image 10,000 times
    *AVATARS_32,
    "data.count=500",
    "data.mirror=false",
    "model.fmap_base=1024",
    "model.fmap_max=128",
    "schedule.batch=64",
    "schedule.stable_images={4: 50000, 8: 50000, 16: 100000, 32: 4700000}",
    "schedule.fade_images={8: 50000, 16: 50000, 32: 100000}",
    "schedule.learning_rate_g=0.0025",
    "schedule.learning_rate_d=0.0025",
    "schedule.lr_decay_images=200000",
    "loss.gamma=0.01",
    "ema.half_life_images=50000",
    "evaluation.metrics=[kid,precision_recall]",
    "evaluation.interval_images=500000",
    "evaluation.count=500",
)
FEW_GPU_EQUAL = "augmentation of 500 avatars, five million images, on a GPU"
LOSSES = "the loss, at equal images, without the filter"
BY_NAME = "recipes by their names, at equal images"
SHORT = (  # data, networks and lengths of a CPU; rates, batch, penalty, EMA and filters are the recipe's
    "data.path=null",
    "data.mirror=false",
    "model.fmap_base=512",
    "model.fmap_max=64",
    "schedule.final_resolution=32",
    "schedule.stable_images=20000",
    "schedule.fade_images=10000",
    "schedule.total_images=null",
)

ROWS = (
    Row("avatars-32", "cartoon faces at 32x32", AVATARS, AVATARS_32),
    Row("demo", "cartoon faces at 32x32", AVATARS, ("experiment=demo",)),
    Row("avatars-32-30-minutes", "cartoon faces at 32x32", AVATARS, (*AVATARS_32, "hours=0.5")),
    Row("avatars-32-unfiltered", LOSSES, AVATARS, (*AVATARS_32, *UNFILTERED)),
    Row("avatars-32-relativistic", LOSSES, AVATARS, (*AVATARS_32, *UNFILTERED, "loss=relativistic")),
    Row("avatars-32-wgan-gp", LOSSES, AVATARS, (*AVATARS_32, *UNFILTERED, "loss=wgan_gp")),
    Row("paper-32", BY_NAME, AVATARS, ("experiment=paper", *SHORT)),
    Row("modern-32", BY_NAME, AVATARS, ("experiment=modern", *SHORT, "loss.gamma=1")),  # which auto is there
    Row("relativistic-32", BY_NAME, AVATARS, ("experiment=relativistic", *SHORT)),
    Row("small-data-32", BY_NAME, AVATARS, ("experiment=small_data", *SHORT)),
    Row("avatars-64", "growing or not, at equal time", AVATARS, AVATARS_64),
    Row(
        "avatars-64-not-growing",
        "growing or not, at equal time",
        AVATARS,
        (*AVATARS_64, "schedule.first_resolution=64"),
    ),
    Row("avatars-128", "growing or not at 128x128, at equal time", AVATARS, (*AVATARS_128, *GROWTH_128)),
    Row(
        "avatars-128-not-growing",
        "growing or not at 128x128, at equal time",
        AVATARS,
        (*AVATARS_128, "schedule.first_resolution=128", "schedule.stable_images={128: 30000}"),
    ),
    Row("orl-64-longer", "augmentation of ORL, equal images", ORL, ORL_64, SMALL, JUDGES),
    Row("orl-64-longer-ada", "augmentation of ORL, equal images", ORL, (*ORL_64, *ADA), SMALL, JUDGES),
    Row("few-avatars-32-longer", FEW_EQUAL, FEW_AVATARS, FEW, SMALL),
    Row("few-avatars-32-longer-ada", FEW_EQUAL, FEW_AVATARS, (*FEW, *ADA), SMALL),
    Row("few-avatars-32-million", FEW_MILLION_EQUAL, FEW_AVATARS, FEW_MILLION, SMALL),
    Row("few-avatars-32-million-ada", FEW_MILLION_EQUAL, FEW_AVATARS, (*FEW_MILLION, *MILLION_ADA), SMALL),
    Row("few-avatars-32-gpu", FEW_GPU_EQUAL, FEW_AVATARS, FEW_GPU, SMALL, gpu=True),
    Row(
        "few-avatars-32-gpu-ada",
        FEW_GPU_EQUAL,
        FEW_AVATARS,
        (*FEW_GPU, "augmentation=ada", "augmentation.rampup_images=500000"),
        SMALL,
        gpu=True,
    ),
    Row("avatars-256", "cartoon faces at 256x256, on a GPU", AVATARS, ("experiment=avatars_256",), gpu=True),
    Row(
        "avatars-1024",
        "cartoon faces at 1024x1024, ten minutes of a GPU",
        AVATARS,
        ("experiment=avatars_1024", "hours=0.16"),
        gpu=True,
    ),
    Row("hours-5-minutes", "the recipe that chooses itself", AVATARS, ("hours=0.083",)),
    Row("orl-hours-1", "the recipe that chooses itself, 400 photographs", ORL, ("hours=1",), SMALL, JUDGES),
)
