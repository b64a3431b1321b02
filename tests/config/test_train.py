"""Training configurations: every choice is valid, every mistake is refused, defaults are those of the YAML."""

from dataclasses import MISSING, fields, is_dataclass

import pytest

from pggan.cli.commands import CONFIGS
from pggan.config import CheckpointConfig, ComputeConfig, TrainConfig, TrainerConfig
from pggan.core.errors import UserError
from pggan.core.schedule import Schedule
from pggan.core.validation import validated
from pggan.losses import build_loss
from tests.composed import composed

ELSEWHERE = {"commands", "experiment", "hydra"}  # tested in tests/cli; the last one is of sweeps alone
GROUPS = [folder.name for folder in CONFIGS.iterdir() if folder.is_dir() and folder.name not in ELSEWHERE]
CHOICES = [(group, file.stem) for group in GROUPS for file in sorted((CONFIGS / group).glob("*.yaml"))]


def train_config(*overrides: str) -> TrainConfig:
    return validated(TrainConfig, composed("train", list(overrides)))


@pytest.mark.slow
@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_of_every_group_makes_a_valid_configuration(group, choice):
    assert isinstance(train_config(f"{group}={choice}"), TrainConfig)


def test_the_defaults_of_a_trainer_are_those_of_the_yaml():
    written = train_config()
    assert {field.name for field in fields(TrainerConfig)} > {
        "compute",
        "optimizer",
        "distributed",
        "gradients",
        "seed",
    }
    built = TrainerConfig(model=written.model, loss=written.loss)
    for field in fields(TrainerConfig):
        assert getattr(built, field.name) == getattr(written, field.name), field.name


def test_defaults_of_a_trainer_are_not_shared_between_configurations():
    for field in fields(TrainerConfig):
        assert field.default is MISSING or field.default.__hash__ is not None
    written = train_config()
    one, other = (TrainerConfig(model=written.model, loss={"name": "wgan_gp"}) for _ in range(2))
    assert one.gradients == other.gradients
    assert one.gradients is not other.gradients


@pytest.mark.parametrize(
    ("words", "gamma"),
    [
        ([], 1.6),  # 0.0002 x 256^2 / 8 = 1.64
        (["schedule.final_resolution=512"], 13.0),  # 0.0002 x 512^2 / 4
        (["schedule.final_resolution=512", "schedule.batch_factor=2"], 6.6),
        (["schedule.final_resolution=64"], 1.0),  # 0.0002 x 64^2 / 32 = 0.026
        (["loss.gamma=3"], 3.0),
        (["loss=relativistic", "loss.gamma=auto"], 1.6),
    ],
)
def test_gamma_is_that_of_the_final_resolution_and_its_batch_where_it_is_auto(words, gamma):
    config = train_config("experiment=modern", *words)
    assert config.loss["gamma"] == gamma
    assert build_loss(config.loss).gamma == gamma


MISTAKES = {
    "schedule.final_resolution=48": "power of two",
    "schedule.first_resolution=2": "power of two",
    "schedule.first_resolution=128": "above",
    "schedule.batch=0": "at least 1",
    "schedule.batch=6": "groups",
    "schedule.batch=2.5": "whole number",
    "schedule.batch=many": "whole number",
    "schedule.batch={8: 16}": "no entry for 4x4",
    "schedule.batch={five: 16}": "not a resolution",
    "schedule.learning_rate_g=-0.1": "at least 0",
    "schedule.learning_rate_g=inf": "below infinity",
    "schedule.stable_images=-1": "at least 0",
    "schedule.total_images=0": "at least 1",
    "schedule.lr_decay_images=-1": "at least 0",
    "schedule.max_growth_share=0": "above 0",
    "schedule.max_growth_share=1.1": "at most 1",
    "schedule.lr_warmup_images=-1": "at least 0",
    "schedule.batch_factor=0": "at least 1",
    "schedule.learning_rate_scaling=cubic": "linear",
    "optimizer.beta1=1": "below 1",
    "optimizer.beta1=fast": "Float",
    "optimizer.beta2=-0.5": "below 1",
    "optimizer.beta2=1": "below 1",
    "optimizer.epsilon=0": "above 0",
    "ema.half_life_images=null": "exactly one",
    "ema.decay_per_update=0.9": "exactly one",
    "ema.half_life_images=0": "above 0",
    "ema.half_life_images=inf": "finite",
    "ema.rampup=0": "above 0",
    "monitor.grid=8": "8x4",
    "monitor.tick_images=0": "at least 1",
    "monitor.grid_images=0": "at least 1",
    "evaluation.metrics=[sdw]": "swd",
    "evaluation.count=1": "at least 2",
    "evaluation.interval_images=0": "at least 1",
    "evaluation.max_share=1": "below 1",
    "evaluation.best=kid": "auto, null or swd",
    "checkpoint.every_images=0": "at least 1",
    "checkpoint.every_minutes=0": "above 0, or null",
    "checkpoint.keep=0": "at least 1",
    "checkpoint.keep=all": "Integer",
    "checkpoint.roll_back_after=0": "at least 1",
    "checkpoint.milestones=[0]": "image counts",
    "checkpoint.milestones=[-5]": "image counts",
    "checkpoint.milestones=[true]": "image counts",
    "checkpoint.milestones=often": "phases",
    "model.fmap_max=0": "at least 1",
    "model.fmap_base=0": "at least 1",
    "model.latent_size=0": "at least 1",
    "model.latent_size=99999999999": "at most 65536",
    "model.stddev_group=0": "at least 1",
    "model.fmap_decay=-1": "at least 0",
    "model.fmap_decay=nan": "at least 0",
    "model.resampling=cubic": "fused",
    "compute.micro_batch_size=0": "at least 1",
    "compute.micro_batch_size=6": "Use 4",
    "compute.convolution=columns": "im2col",
    "compute.penalty=tangent": "jvp",
    "distributed.heartbeat_timeout_seconds=4": "at least 5",
    "distributed.elastic_chunks=0": "at least 1",
    "distributed.max_restarts=-1": "at least 0",
    "distributed.rdzv_timeout_seconds=0": "at least 1",
    "data.count=0": "at least 1",
    "data.device_budget_mib=-1": "at least 0",
    "data.verify=perhaps": "bool",
    "data.crop=middle": "center",
    "data.mirror=perhaps": "bool",
    "seed=one": "Integer",
    "seed=1.5": "Integer",
    "seed=null": "seed",
}


@pytest.mark.slow
@pytest.mark.parametrize(("override", "hint"), MISTAKES.items())
def test_a_value_that_cannot_work_is_refused_with_its_key_and_what_would_do(override, hint):
    with pytest.raises(UserError) as caught:
        train_config(override)
    assert override.partition("=")[0] in str(caught.value)
    assert hint in str(caught.value)


def test_every_section_has_a_value_that_cannot_work():
    sections = {field.name for field in fields(TrainConfig) if is_dataclass(field.type)}
    assert sections <= {key.partition(".")[0] for key in MISTAKES}


def test_adam_betas_given_as_whole_numbers_become_floats():
    assert isinstance(train_config("optimizer.beta1=0").optimizer.beta1, float)


@pytest.mark.slow
def test_a_new_run_from_weights_can_not_resume_another_one():
    for resume in ("auto", "never"):
        train_config("init_from=elsewhere", f"resume={resume}")
    with pytest.raises(UserError, match="Leave out one of them"):
        train_config("init_from=elsewhere", "resume=elsewhere")


def test_micro_batches_hold_whole_groups():
    model = train_config().model  # in groups of 4
    for size in (None, 4, 8):
        TrainerConfig(model=model, loss={"name": "wgan_gp"}, compute=ComputeConfig(micro_batch_size=size))
    for size, advice in {6: "Use 4", 3: "Use 4", 11: "Use 8"}.items():
        with pytest.raises(UserError, match=advice):
            TrainerConfig(model=model, loss={"name": "wgan_gp"}, compute=ComputeConfig(micro_batch_size=size))


@pytest.mark.parametrize(
    ("metrics", "best", "number"),
    [
        ("[ms_ssim,kid,swd]", "auto", "kid"),
        ("[ms_ssim,kid,swd]", "swd", "swd/mean"),
        ("[swd]", "null", None),
        ("[ms_ssim]", "auto", None),
        ("[]", "auto", None),
    ],
)
def test_the_best_checkpoint_is_decided_by_a_metric_that_has_an_order(metrics, best, number):
    config = train_config(f"evaluation.metrics={metrics}", f"evaluation.best={best}")
    assert config.evaluation.best_metric == number


def test_milestones_are_listed_or_the_ends_of_all_phases():
    tables = {key: {4: 8} for key in ("stable_images", "fade_images", "batch", "learning_rate_g", "learning_rate_d")}
    schedule = Schedule(first_resolution=4, final_resolution=8, **tables)

    def milestones(given):
        config = CheckpointConfig(every_images=1, every_minutes=None, keep=1, milestones=given, roll_back_after=1)
        return config.milestone_images(schedule)

    assert milestones([]) == []
    assert milestones([100, 5]) == [100, 5]
    assert milestones("phases") == [8, 16, 24]  # 4x4 stable, 8x8 fade, 8x8 stable
