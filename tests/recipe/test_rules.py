"""The rules by which hours= chooses, on a machine whose speed is known."""

from dataclasses import replace

import pytest

from benchmarks.fixed_recipes import AVATARS, PORTRAITS, two_cores
from pggan.core.schedule import value_at
from pggan.performance.recipe import FEW_IMAGES, GPU_BATCH, MAX_IMAGES, DataFacts, Recipe
from pggan.run.eta import TRAINING_SHARE
from tests.composed import train_config

CPU, GPU = ("cpu", 1), ("cuda", 1)  # kind and number of devices
LENGTHS = {"schedule.stable_images", "schedule.fade_images"}


@pytest.fixture(scope="module")
def config():
    return train_config("loss=logistic")


@pytest.fixture(scope="module")
def avatars_32():
    return train_config("experiment=avatars_32")


def choose(config, hours, facts=AVATARS, machine=CPU, times=1, given=(), **keys):
    seconds = TRAINING_SHARE * 3600 * hours
    recipe = Recipe(config, set(given), facts, *machine, two_cores(times), seconds, **keys)
    recipe.choose()
    return {choice.key: choice.value for choice in recipe.choices}, recipe.sizes, recipe.batch


def seconds_of(found, networks):
    each = two_cores()(networks, {4: 16})
    tables = (found["schedule.stable_images"], found["schedule.fade_images"])
    return sum(images * each[side] for table in tables if table for side, images in table.items())


def test_five_minutes_of_avatars_are_the_recipe_made_by_hand(config, avatars_32):
    found, networks, _ = choose(config, 0.083)
    model, schedule = avatars_32.model, avatars_32.schedule
    assert networks == (32, model.fmap_base, model.fmap_max, False)
    stable, fade = found["schedule.stable_images"], found["schedule.fade_images"]
    for chosen, made in ((stable, schedule.stable_images), (fade, schedule.fade_images)):
        below = {side: images for side, images in made.items() if side < 32}
        assert {side: chosen[side] for side in below} == pytest.approx(below, rel=0.1)
    assert stable[32] == pytest.approx(schedule.stable_images[32], rel=0.2)
    falling = schedule.lr_decay_images / schedule.stable_images[32]
    assert found["schedule.lr_decay_images"] / stable[32] == pytest.approx(falling, rel=0.1)
    assert found["schedule.batch"] == {4: 8}  # the demo's
    assert (found["schedule.learning_rate_g"], found["schedule.learning_rate_d"]) == (0.02, 0.01)
    assert (found["model.residual"], found["model.bilateral"]) == (model.residual, model.bilateral) == (True, 4)
    assert (found["loss"], found["loss.gamma"], found["loss.reg_interval"]) == ("logistic", 1.0, 8)
    assert (found["ema.half_life_images"], found["ema.rampup"]) == (avatars_32.ema.half_life_images, 0.2)
    assert found["data.mirror"] is avatars_32.data.mirror
    assert "augmentation" not in found


@pytest.mark.parametrize("hours", [0.02, 0.25, 24])
@pytest.mark.parametrize("facts", [AVATARS, PORTRAITS])
def test_the_recipe_takes_the_hours(config, facts, hours):
    found, networks, _ = choose(config, hours, facts)
    assert seconds_of(found, networks) == pytest.approx(TRAINING_SHARE * 3600 * hours, rel=0.06)


def test_more_hours_never_give_a_lower_resolution_and_data_is_never_enlarged(config):
    sides = [choose(config, hours)[1].resolution for hours in (0.005, 0.02, 0.083, 0.5, 8, 100)]
    assert sides == sorted(sides)
    assert sides[0] < sides[-1]
    assert choose(config, 100, PORTRAITS._replace(resolution=16))[1].resolution == 16
    assert choose(config, 10**6)[1].resolution == AVATARS.resolution
    assert choose(train_config("schedule.final_resolution=2048"), 1, given=["schedule.final_resolution"])[1][0] == 2048


def test_few_photographs_are_augmented_in_long_runs_alone(config):
    assert "augmentation" not in choose(config, 0.25, PORTRAITS)[0]
    found = choose(config, 24, PORTRAITS)[0]
    images = sum(sum(found[key].values()) for key in LENGTHS)
    assert found["augmentation"] == "ada"
    assert 2 * found["augmentation.rampup_images"] == pytest.approx(min(images, 1e6), rel=0.05)
    assert "augmentation" not in choose(config, 24, PORTRAITS._replace(images=FEW_IMAGES))[0]
    kept = choose(config, 24, PORTRAITS, given={"augmentation"})[0]
    assert not {"augmentation", "augmentation.rampup_images"} & set(kept)


@pytest.mark.parametrize(("drawn", "features", "at_64"), [(True, True, 1.0), (False, True, 12.0), (False, False, 4.0)])
def test_gamma_grows_with_the_resolution_and_never_below_that_of_the_lab_book(config, drawn, features, at_64):
    for side in (64, 128, 256):
        facts = DataFacts(50_000, side, 3, 0, drawn=drawn, note="")
        found, _, batch = choose(config, 24, facts, GPU, 1e4, has_features=features)
        least = at_64 if side == 64 else 1.0
        rule = 0.0002 * side**2 / value_at(batch, side)
        assert found["loss.gamma"] == pytest.approx(max(least, rule), rel=0.05)
        assert (side == 256) == (rule > least)


FEATURES = {"model.features", "model.features_from"}
LAYERS = {"model.blur", "model.residual", "model.bilateral", *FEATURES}


@pytest.mark.parametrize(
    ("side", "channels", "drawn", "hours", "chosen"),
    [
        (32, 3, False, 0.1, {"model.blur"}),
        (64, 1, False, 1, {"model.blur", *FEATURES}),
        (64, 4, False, 1, set()),
        (128, 3, False, 16, set()),
        (64, 3, True, 1, {"model.residual", "model.bilateral"}),
    ],
)
def test_blocks_are_those_that_won_on_such_images(config, side, channels, drawn, hours, chosen):
    facts = DataFacts(400, side, channels, 0, drawn=drawn, note="")
    found, networks, _ = choose(config, hours, facts, times=3)
    assert networks.resolution == side
    assert {key for key in found if key in LAYERS} == chosen


def test_without_their_package_or_their_loss_the_recipe_has_no_features(config):
    assert choose(config, 1, PORTRAITS)[0]["model.features"] == "efficientnet-lite0"
    assert choose(config, 1, PORTRAITS, has_features=False)[0]["model.features"] is None
    for name in ("wgan_gp", "object"):  # these losses have no gamma either
        other = replace(config, loss=replace(config.loss, name=name))
        found = choose(other, 1, PORTRAITS, given={"loss"})[0]
        assert not (FEATURES | {"loss.gamma"}) & set(found)


def test_large_images_are_trained_as_published(config):
    facts = DataFacts(70_000, 1024, 3, 0, drawn=False, note="")
    found, networks, batch = choose(config, 72, facts, GPU, 1e4)
    assert networks == (1024, 8192, 512, False)
    assert (found["loss"], found["schedule.learning_rate_g"]) == ("wgan_gp", 0.001)
    assert not {"schedule.lr_decay_images", "loss.gamma"} & set(found)
    assert batch == GPU_BATCH
    assert max(found["schedule.fade_images"].values()) <= MAX_IMAGES


@pytest.mark.parametrize(("images", "batch"), [(400, 16), (15, 12), (3, 3)])
def test_short_runs_have_smaller_batches_and_none_is_larger_than_the_set_of_images(config, images, batch):
    for hours, most in ((0.25, 4), (24, 16)):
        assert choose(config, hours, PORTRAITS._replace(images=images))[2][4] == min(batch, most)
    for machine in (("cpu", 8), ("cuda", 32)):  # every rank has a group
        assert all(size >= 4 * machine[1] for size in choose(config, 24, PORTRAITS, machine)[2].values())


def test_what_is_given_stays_and_decides_the_rest(config):
    given = {"schedule.final_resolution", "model.fmap_max", "schedule.batch", "loss", "ema.rampup"}
    found, networks, batch = choose(config, 0.25, given=given)
    assert not given & set(found)
    side, width = config.schedule.final_resolution, config.model.fmap_max
    assert networks == (side, 8 * side * width // 64, width, False)  # fmap_base follows, as of 64 maps
    assert batch == {4: config.schedule.batch}


def test_too_little_time_for_a_given_resolution_is_used(config):
    for seconds in (0.1, 120):
        found, networks, batch = choose(config, seconds / 3600, given={"schedule.final_resolution"})  # 64x64
        assert min(found["schedule.fade_images"].values()) >= batch[4]
    assert seconds_of(found, networks) == pytest.approx(TRAINING_SHARE * 120, rel=0.06)


def test_the_lengths_of_a_recipe_are_scaled_to_the_time(avatars_32):
    given = {"schedule.final_resolution", "schedule.batch", "model.fmap_max", "model.fmap_base", "loss"}
    found, networks, _ = choose(avatars_32, 1.0, given=given, scales=True)
    assert seconds_of(found, networks) == pytest.approx(TRAINING_SHARE * 3600, rel=0.06)
    stable, made = found["schedule.stable_images"], avatars_32.schedule.stable_images
    factor = stable[32] / made[32]
    assert stable[4] / made[4] == pytest.approx(factor, rel=0.1)
    falling = avatars_32.schedule.lr_decay_images
    assert found["schedule.lr_decay_images"] == pytest.approx(factor * falling, rel=0.1)
    assert found["schedule.total_images"] is None
    assert not LENGTHS & set(choose(avatars_32, 1.0, given=given | LENGTHS)[0])


def test_a_run_that_never_grows_is_possible(config):
    found, networks, _ = choose(config, 0.001, PORTRAITS._replace(resolution=4))
    assert (networks.resolution, found["schedule.fade_images"]) == (4, 0)
    assert seconds_of(found, networks) == pytest.approx(TRAINING_SHARE * 3.6, rel=0.06)
