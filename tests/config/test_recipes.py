"""Recipes, which compose, train and have the values of their method; and tables of the schedule."""

from dataclasses import replace

import pytest

from pggan.cli.main import main
from pggan.config.defaults import choices_of
from tests.composed import train_config

RECIPES = [f"experiment={name}" for name in choices_of("experiment")] + ["debug=smoke", "debug=overfit"]


@pytest.mark.parametrize("choice", RECIPES)
def test_every_recipe_composes_and_has_a_name_of_its_own(choice):
    checked = train_config(choice)
    assert checked.name == choice.partition("=")[2]
    assert checked.data.path is None or "avatars" not in choice


@pytest.mark.slow
@pytest.mark.parametrize("choice", RECIPES)
def test_the_first_phase_of_every_recipe_trains_at_reduced_size(choice, toy_data, tmp_path):
    smaller = ["schedule.final_resolution=16", "schedule.batch=4", "schedule.total_images=8", "model.fmap_max=4"]
    data = [f"data.path={toy_data}", "data.channels=null", "devices=cpu", "schedule.lr_decay_images=0"]
    assert main(["train", choice, *smaller, *data, f"run_dir={tmp_path / 'run'}"]) == 0
    assert (tmp_path / "run" / "generator.safetensors").is_file()


def test_paper_is_as_published():
    """Appendix A.1: WGAN-GP with drift and a penalty at every update, Adam, and an average per update."""
    paper = train_config("experiment=paper")
    published = {"name": "wgan_gp", "penalty_weight": 10, "target": 1, "reg_interval": 1}
    assert {key: getattr(paper.loss, key) for key in published} == published
    schedule = paper.schedule
    assert (schedule.learning_rate_g, schedule.stable_images, schedule.fade_images) == (0.001, 800_000, 800_000)
    assert paper.ema.decay_per_update == 0.999
    assert paper.augmentation.name == "none"
    assert not any((paper.model.blur, paper.model.bilateral, paper.model.residual, paper.model.features))


def test_the_official_presets_differ_in_the_schedule_alone():
    one, eight = train_config("experiment=celebahq_1024"), train_config("experiment=celebahq_1024_8gpus")
    assert replace(eight, schedule=one.schedule, name=one.name) == one
    assert eight.schedule.build().phases[0].batch == 512


# ---- tables ----------------------------------------------------------------------------------------------


def schedule_of(*overrides):
    return train_config(*overrides).schedule.build()


@pytest.mark.slow
def test_per_level_values_take_a_number_or_a_table_and_tables_merge():
    assert schedule_of("schedule.batch=8").at(0).batch == 8
    merged = schedule_of("schedule=official_1gpu", "schedule.batch={4: 64}")
    assert (merged.phases[0].batch, merged.phases[-1].batch) == (64, 4)
    extended = schedule_of("schedule=official_1gpu", "schedule.batch={16: 100}")
    assert [extended.batch[side] for side in (4, 16, 32)] == [128, 100, 64]
    replaced = schedule_of("schedule=official_1gpu", "schedule.batch=12")
    assert {phase.batch for phase in replaced.phases} == {12}


def test_larger_batches_take_learning_rates_larger_by_their_root():
    base, larger = schedule_of(), schedule_of("schedule.batch_factor=4")
    for before, now in zip(base.phases, larger.phases, strict=True):
        assert now.batch == 4 * before.batch
        assert now.learning_rate_g == pytest.approx(2 * before.learning_rate_g)
        assert now.learning_rate_d == pytest.approx(2 * before.learning_rate_d)
        assert (now.start, now.end) == (before.start, before.end)  # images are the clock
