"""The rules by which hours= chooses, on a machine whose speed is known."""

from dataclasses import replace

import pytest

from pggan.config import TrainConfig
from pggan.core.errors import UserError
from pggan.core.schedule import value_at
from pggan.core.validation import validated
from pggan.performance.recipe.batch import GPU_BATCH
from pggan.performance.recipe.choices import Choices
from pggan.performance.recipe.chooser import choose_recipe
from pggan.performance.recipe.data_facts import DataFacts
from pggan.performance.recipe.growth import FADE, STABLE, growth_seconds
from pggan.performance.recipe.lengths import FALLING_SHARE, MAX_IMAGES
from pggan.performance.recipe.rounding import one_two_five, plain, two_digits
from pggan.performance.recipe.situation import SHORT_RUN, Machine, NetworkSizes, Situation
from pggan.performance.recipe.training import FEW_IMAGES, choose_rates, choose_reports
from pggan.run.time_limit import TRAINING_SHARE
from tests.composed import composed

AVATARS = DataFacts(4096, 256, 3, 0, drawn=True, note="avatars")
PORTRAITS = DataFacts(400, 256, 3, 0, drawn=False, note="portraits")
CPU, GPU = Machine("cpu", 1), Machine("cuda", 1)
DEMO_SECONDS = {4: 0.0010, 8: 0.0031, 16: 0.0056, 32: 0.0050}  # of an image with 64 feature maps (lab book, two cores)


class GivenKeys:
    """Some typed keys, and others from a recipe."""

    def __init__(self, *typed, recipe=()):
        self._typed, self._given = set(typed), {*typed, *recipe}

    def in_command(self, key):
        return key in self._typed

    def has(self, key):
        return key in self._given


def two_cores(networks, batch):
    """Above 32x32 three times as long from level to level; wider networks by their operations."""
    times = (networks.fmap_max / 64) ** 2
    levels = [side for side in (4, 8, 16, 32, 64, 128, 256, 512, 1024) if side <= networks.resolution]
    return {side: times * DEMO_SECONDS.get(side, 0.005 * 3 ** (side.bit_length() - 6)) for side in levels}


def fast(times):
    return lambda networks, batch: {side: each / times for side, each in two_cores(networks, batch).items()}


@pytest.fixture(scope="module")
def config():
    return validated(TrainConfig, composed("train", ["loss=logistic"]))


@pytest.fixture(scope="module")
def avatars_32():
    return validated(TrainConfig, composed("train", ["experiment=avatars_32"]))


def choose(config, hours, facts=AVATARS, machine=CPU, costs=two_cores, given=None):
    seconds = TRAINING_SHARE * 3600 * hours
    choices, sizes, batch = choose_recipe(Situation(config, given or GivenKeys(), facts, machine, costs, seconds))
    return {choice.key: choice.value for choice in choices}, sizes, batch


def seconds_of(found, networks, costs=two_cores):
    each = costs(networks, {4: 16})
    tables = (found["schedule.stable_images"], found["schedule.fade_images"])
    return sum(images * each[side] for table in tables if table for side, images in table.items())


def test_five_minutes_of_avatars_are_the_recipe_made_by_hand(config, avatars_32):
    found, networks, _ = choose(config, 0.083)
    assert networks == (32, avatars_32.model.fmap_base, avatars_32.model.fmap_max, False)
    stable, fade = found["schedule.stable_images"], found["schedule.fade_images"]
    for chosen, made in ((stable, avatars_32.schedule.stable_images), (fade, avatars_32.schedule.fade_images)):
        below = {side: images for side, images in made.items() if side < 32}
        assert {side: chosen[side] for side in below} == pytest.approx(below, rel=0.1)
    assert stable[32] == pytest.approx(avatars_32.schedule.stable_images[32], rel=0.2)
    falling = avatars_32.schedule.lr_decay_images / avatars_32.schedule.stable_images[32]
    assert found["schedule.lr_decay_images"] / stable[32] == pytest.approx(falling, rel=0.1)
    assert found["schedule.batch"] == {4: 8}  # the demo's
    assert (found["schedule.learning_rate_g"], found["schedule.learning_rate_d"]) == (0.02, 0.01)
    assert found["model.residual"] is avatars_32.model.residual is True
    assert found["model.bilateral"] == avatars_32.model.bilateral == 4
    assert (found["loss"], found["loss.gamma"], found["loss.reg_interval"]) == ("logistic", 1.0, 8)
    assert (found["ema.half_life_images"], found["ema.rampup"]) == (avatars_32.ema.half_life_images, 0.2)
    assert found["data.mirror"] is avatars_32.data.mirror
    assert "augmentation" not in found
    assert "model.residual" not in choose(config, 0.083, PORTRAITS)[0]


@pytest.mark.parametrize("hours", [0.02, 0.083, 0.25, 0.5, 2, 24])
@pytest.mark.parametrize("facts", [AVATARS, PORTRAITS])
def test_the_recipe_takes_the_hours(config, facts, hours):
    found, networks, _ = choose(config, hours, facts)
    assert seconds_of(found, networks) == pytest.approx(TRAINING_SHARE * 3600 * hours, rel=0.06)


def test_more_hours_never_give_a_lower_resolution_and_data_is_never_enlarged(config):
    sides = [choose(config, hours)[1].resolution for hours in (0.005, 0.02, 0.083, 0.5, 8, 100)]
    assert sides == sorted(sides)
    assert sides[0] < sides[-1]
    small = DataFacts(400, 16, 3, 0, drawn=False, note="small")
    assert choose(config, 100, small)[1].resolution == 16
    assert choose(config, 10**6)[1].resolution == AVATARS.resolution


def test_wider_networks_are_for_those_who_have_time(config):
    widths = [choose(config, hours, DataFacts(400, 32, 3, 0, drawn=False, note=""))[1] for hours in (0.1, 1, 10, 100)]
    assert [each.fmap_max for each in widths] == sorted(each.fmap_max for each in widths)
    assert widths[0].fmap_max == 64 < widths[-1].fmap_max == 512
    assert {each.fmap_base * 2 // 32 * 64 // each.fmap_max for each in widths} == {16}


def test_few_photographs_are_augmented_and_many_are_not(config):
    found = choose(config, 0.25, PORTRAITS)[0]
    tables = found["schedule.stable_images"], found["schedule.fade_images"]
    assert found["augmentation"] == "ada"
    assert 2 * found["augmentation.rampup_images"] == pytest.approx(
        sum(sum(each.values()) for each in tables), rel=0.05
    )
    assert "augmentation" not in choose(config, 0.25, PORTRAITS._replace(images=FEW_IMAGES))[0]
    kept = GivenKeys("augmentation.name")
    assert not {"augmentation", "augmentation.rampup_images"} & set(choose(config, 0.25, PORTRAITS, given=kept)[0])


@pytest.mark.parametrize("facts", [AVATARS, PORTRAITS, PORTRAITS._replace(images=FEW_IMAGES)])
def test_ada_that_is_given_can_rise_within_the_run_too(config, facts):
    ada = replace(config, augmentation=validated(TrainConfig, composed("train", ["augmentation=ada"])).augmentation)
    found = choose(ada, 0.25, facts, given=GivenKeys("augmentation.name"))[0]
    images = sum(sum(found[f"schedule.{key}_images"].values()) for key in ("stable", "fade"))
    assert 2 * found["augmentation.rampup_images"] == pytest.approx(images, rel=0.05)
    assert "augmentation" not in found
    for typed in (
        GivenKeys("augmentation.name", "augmentation.rampup_images"),
        GivenKeys(recipe=["augmentation.name"]),
    ):
        held = choose(ada, 0.25, facts, given=typed)[0]
        assert ("augmentation.rampup_images" in held) is not typed.has("augmentation.rampup_images")
    constant = replace(ada, augmentation=replace(ada.augmentation, p=0.2))
    assert "augmentation.rampup_images" not in choose(constant, 0.25, facts, given=GivenKeys("augmentation.name"))[0]


def test_in_a_long_run_p_rises_as_fast_as_in_stylegan2_ada(config):
    """At half of the images of the run, it would take millions of them."""
    found = choose(config, 100, PORTRAITS, costs=fast(100))[0]
    images = sum(sum(found[f"schedule.{key}_images"].values()) for key in ("stable", "fade"))
    assert images > 2 * 500_000 == 2 * found["augmentation.rampup_images"]


def chosen_by(rule, situation, *arguments):
    """The values that one rule chooses."""
    choices = Choices(situation.given)
    rule(situation, choices, *arguments)
    return {choice.key: choice.value for choice in choices.found}


@pytest.mark.parametrize(("width", "rate"), [(64, 0.006), (128, 0.005), (256, 0.0035), (512, 0.0025)])
def test_wider_networks_learn_at_lower_rates(config, width, rate):
    """From those of the ORL run down to StyleGAN2-ADA's (docs/recipes.md)."""
    situation = Situation(config, GivenKeys(), PORTRAITS, CPU, two_cores, 3600)
    found = chosen_by(choose_rates, situation, NetworkSizes(256, 8192, width))
    assert found == {"schedule.learning_rate_g": rate, "schedule.learning_rate_d": rate}


def test_d_follows_a_rate_of_g_that_is_given(config):
    """As it does without hours=; the recipe would have G learn twice as fast as D."""
    for given, chosen in ((["g"], {}), (["d"], {"g": 0.02}), ([], {"g": 0.02, "d": 0.01})):
        situation = Situation(
            config, GivenKeys(*(f"schedule.learning_rate_{one}" for one in given)), AVATARS, CPU, two_cores, 60
        )
        found = chosen_by(choose_rates, situation, NetworkSizes(32, 256, 64))
        assert found == {f"schedule.learning_rate_{one}": rate for one, rate in chosen.items()}


def test_rates_are_those_of_the_feature_maps_that_the_networks_have(config):
    situation = Situation(config, GivenKeys(), PORTRAITS, CPU, two_cores, 60)
    choices = Choices(situation.given)
    choose_rates(situation, choices, NetworkSizes(4, 128, 256))
    assert choices.found[0].value == 0.006
    assert choices.found[0].reason.startswith("for 64 feature maps")


def test_gamma_grows_with_the_resolution_and_never_below_that_of_the_lab_book(config):
    for drawn in (True, False):
        for side in (32, 64, 128, 256):
            facts = DataFacts(50_000, side, 3, 0, drawn=drawn, note="")
            found, _, batch = choose(config, 24, facts, GPU, fast(1e4))
            least = 12.0 if side <= 64 and not drawn else 1.0
            rule = 0.0002 * side**2 / value_at(batch, side)
            assert found["loss.gamma"] == pytest.approx(max(least, rule), rel=0.05)
            assert (side == 256) == (rule > least)


FEATURES = {"model.features", "model.features_from"}
LAYERS = {"model.blur", "model.noise", "model.residual", "model.bilateral", *FEATURES}


@pytest.mark.parametrize(
    ("side", "channels", "drawn", "hours", "chosen"),
    [
        (32, 3, False, 0.1, {"model.blur"}),
        (64, 3, False, 1, {"model.blur", *FEATURES}),
        (64, 1, False, 1, {"model.blur", *FEATURES}),
        (64, 4, False, 1, set()),
        (128, 1, False, 16, set()),
        (128, 3, False, 16, set()),
        (64, 3, True, 1, {"model.residual", "model.bilateral"}),
    ],
)
def test_blocks_are_those_that_won_on_such_images(config, side, channels, drawn, hours, chosen):
    facts = DataFacts(400, side, channels, 0, drawn=drawn, note="")
    found, networks, _ = choose(config, hours, facts, costs=fast(3))
    assert networks.resolution == side
    assert {key for key in found if key in LAYERS} == chosen


def test_without_their_package_the_recipe_has_no_features_and_says_so(config):
    situation = Situation(config, GivenKeys(), PORTRAITS, CPU, two_cores, 3600)
    for has_lite0, value in ((True, "efficientnet-lite0"), (False, None)):
        choices = choose_recipe(replace(situation, has_lite0=has_lite0)).choices
        (choice,) = (choice for choice in choices if choice.key == "model.features")
        assert choice.value == value
        assert ("pip install" in choice.reason) is not has_lite0
    given = GivenKeys("loss.name")
    published = replace(config, loss=replace(config.loss, name="wgan_gp"))
    assert not FEATURES & set(choose(published, 1, PORTRAITS, given=given)[0])


def test_features_are_given_up_before_a_resolution(config):
    def costs(networks, batch):
        return {side: (1.6 if networks.features else 1) * each for side, each in two_cores(networks, batch).items()}

    found = [choose(config, percent / 100, PORTRAITS, costs=costs) for percent in range(5, 40)]
    chosen = [(sizes.resolution, sizes.features) for _, sizes, _ in found]
    assert chosen == sorted(chosen)
    assert {*chosen} == {(32, False), (64, False), (64, True)}
    for choices, sizes, _ in found:
        assert ("model.features_from" in choices) is sizes.features
        assert ("model.features" in choices) is (sizes.resolution == 64)
        assert choices.get("model.features") == ("efficientnet-lite0" if sizes.features else None)


def test_large_images_are_trained_as_published(config):
    facts = DataFacts(70_000, 1024, 3, 0, drawn=False, note="")
    found, networks, batch = choose(config, 72, facts, GPU, fast(1e4))
    assert networks == (1024, 8192, 512, False)
    assert (found["loss"], found["schedule.learning_rate_g"]) == ("wgan_gp", 0.001)
    assert "schedule.lr_decay_images" not in found
    assert batch == GPU_BATCH
    assert "loss.gamma" not in found
    assert max(found["schedule.fade_images"].values()) <= MAX_IMAGES


@pytest.mark.parametrize("machine", [Machine("cpu", 8), Machine("cuda", 32)])
def test_every_rank_gets_a_group_of_every_batch(config, machine):
    _, _, batch = choose(config, 24, PORTRAITS, machine)
    assert all(size >= 4 * machine.ranks for size in batch.values())


def test_images_of_different_channels_become_colours_unless_another_number_is_given(config):
    mixed = PORTRAITS._replace(mixed=True)
    assert "data.channels" not in choose(config, 1, PORTRAITS)[0]
    assert choose(config, 1, mixed)[0]["data.channels"] == 3
    assert "data.channels" not in choose(config, 1, mixed, given=GivenKeys("data.channels"))[0]


@pytest.mark.parametrize("facts", [AVATARS, PORTRAITS])
def test_short_runs_on_a_cpu_have_smaller_batches_than_long_ones(config, facts):
    found = [choose(config, hours, facts) for hours in (0.02, 0.083, 0.25, 0.5, 1, 4, 24)]
    images = [sum(sum(each[0][f"schedule.{key}_images"].values()) for key in ("stable", "fade")) for each in found]
    assert [batch[4] for *_, batch in found] == [8 if total < SHORT_RUN else 16 for total in images]
    assert images[0] < SHORT_RUN < images[-1]
    assert all(choices["schedule.batch"] == batch for choices, _, batch in found)
    assert choose(config, 0.02, facts, Machine("cuda", 1))[2][4] == GPU_BATCH[4]


@pytest.mark.parametrize(("images", "batch"), [(400, 16), (16, 16), (15, 12), (5, 4), (3, 3), (2, 2)])
def test_a_batch_is_never_larger_than_the_set_of_images(config, images, batch):
    for hours, most in ((0.25, 8), (24, 16)):
        assert choose(config, hours, PORTRAITS._replace(images=images))[2] == {4: min(batch, most)}


def test_images_too_few_for_any_batch_are_refused_before_anything_is_measured(config):
    for images, machine, remedy in ((1, CPU, "Give more images."), (7, Machine("cpu", 2), "fewer devices=")):
        with pytest.raises(UserError, match=f"{images} image") as caught:
            choose(config, 0.25, PORTRAITS._replace(images=images), machine, costs=None)
        assert remedy in caught.value.remedy
    given = GivenKeys("schedule.batch")
    assert choose(config, 0.25, PORTRAITS._replace(images=1), given=given)[2] == {4: config.schedule.batch}


def test_what_is_given_stays_and_decides_the_rest(config):
    keys = ["schedule.final_resolution", "model.fmap_max", "schedule.batch", "loss.name", "ema.rampup"]
    found, networks, batch = choose(config, 0.25, given=GivenKeys(*keys))
    assert not {"schedule.final_resolution", "model.fmap_max", "schedule.batch", "loss", "ema.rampup"} & set(found)
    side, width = config.schedule.final_resolution, config.model.fmap_max
    assert networks == (side, 8 * side * width // 64, width, False)  # fmap_base follows, as of 64 maps
    assert batch == {4: config.schedule.batch}


@pytest.mark.parametrize("recipe", [(), ("schedule.stable_images", "schedule.final_resolution", "schedule.batch")])
def test_on_a_gpu_the_first_steps_of_every_phase_take_their_part_of_the_time(config, avatars_32, recipe):
    """Kernels are tried and steps captured: 3 s each (lab book)."""
    given, start = GivenKeys(recipe=recipe), avatars_32 if recipe else config
    found, networks, _ = choose(start, 0.1, machine=GPU, costs=fast(1000), given=given)
    phases = 2 * networks.resolution.bit_length() - 5
    training = seconds_of(found, networks, fast(1000))
    assert training + 3 * phases == pytest.approx(TRAINING_SHARE * 360, rel=0.06)
    config = replace(config, schedule=replace(config.schedule, final_resolution=8))
    short = Situation(config, GivenKeys("schedule.final_resolution"), AVATARS, GPU, fast(1000), seconds=9.0)
    with pytest.raises(UserError, match="one step of every phase up to 8x8 takes 9 s"):
        choose_recipe(short)


def test_given_lengths_decide_the_resolution_and_how_the_rest_is_divided(config):
    lengths = "schedule.stable_images", "schedule.fade_images"
    longer = replace(config, schedule=replace(config.schedule, stable_images=50_000, fade_images=50_000))
    given = GivenKeys(*lengths)
    free, held = (choose(config, 0.25, PORTRAITS), choose(longer, 0.25, PORTRAITS, given=given))
    assert held[1].resolution < free[1].resolution
    each = two_cores(held[1], held[2])
    growth = growth_seconds(each, *({4: 50_000},) * 2)
    rest = (TRAINING_SHARE * 900 - growth) / each[held[1].resolution]
    assert held[0]["schedule.lr_decay_images"] == pytest.approx(FALLING_SHARE * rest, rel=0.1)
    alone = choose(longer, 0.25, PORTRAITS, given=GivenKeys(lengths[0]))[0]
    assert lengths[0] not in alone
    assert lengths[1] in alone


def test_the_last_level_of_given_lengths_is_said_to_last_as_long_as_the_hours(config):
    def ends(seconds, images):
        schedule = replace(config.schedule, stable_images=images)
        given = GivenKeys("schedule.stable_images", "schedule.final_resolution")
        situation = Situation(replace(config, schedule=schedule), given, AVATARS, CPU, two_cores, seconds)
        return next(choice for choice in choose_recipe(situation).choices if choice.key == "schedule.total_images")

    assert ends(1000, 500)[1:] == (None, "64x64 lasts until the hours are over, however many images it is given")
    assert "before 64x64 is reached" in ends(100, 10**6).reason
    assert "schedule.total_images" not in choose(config, 0.25)[0]
    limited = replace(config, schedule=replace(config.schedule, total_images=100))  # by a recipe
    assert choose(limited, 0.25)[0]["schedule.total_images"] is None


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("model.fmap_base", "model.fmap_max"),
        ("schedule.stable_images", "schedule.fade_images"),
    ],
)
def test_no_reason_points_to_a_row_that_is_missing(config, key, other):
    def reasons(*given):
        choices = choose_recipe(Situation(config, GivenKeys(*given), AVATARS, CPU, two_cores, 300)).choices
        return {choice.key: choice.reason for choice in choices}

    assert reasons()[other] == "as above"
    assert reasons(key)[other] != "as above"


def test_given_feature_maps_are_named_as_the_networks_have_them(config):
    given = GivenKeys("model.fmap_max", "schedule.final_resolution")
    narrow = replace(config, model=replace(config.model, fmap_max=16))
    choices = choose_recipe(Situation(narrow, given, AVATARS, CPU, two_cores, 3600)).choices
    reason = next(choice.reason for choice in choices if choice.key == "model.fmap_base")
    assert reason == "16 feature maps at 4x4, 4 at 64x64"


def test_a_width_that_is_given_as_it_would_be_chosen_changes_nothing(config):
    """The other one is still chosen, unless a recipe, whose networks stay as they are, has one of them."""
    free = choose(config, 0.5, PORTRAITS)
    base, most = free[1].fmap_base, free[1].fmap_max
    for key, value in (("fmap_max", most), ("fmap_base", base)):
        same = replace(config, model=replace(config.model, **{key: value}))
        found = choose(same, 0.5, PORTRAITS, given=GivenKeys(f"model.{key}"))
        assert found[1:] == free[1:]
        assert found[0] == {name: one for name, one in free[0].items() if name != f"model.{key}"}
        recipe = GivenKeys(recipe=[f"model.{key}"])
        networks = choose(same, 0.5, PORTRAITS, given=recipe)[1]
        assert (networks.fmap_base, networks.fmap_max) == (same.model.fmap_base, same.model.fmap_max)


def test_the_gamma_of_photographs_is_that_of_the_loss_that_was_tried_on_them(config):
    assert choose(config, 0.5, PORTRAITS)[0]["loss.gamma"] == 12
    relativistic = replace(config, loss=replace(config.loss, name="relativistic"))
    assert choose(relativistic, 0.5, PORTRAITS, given=GivenKeys("loss.name"))[0]["loss.gamma"] == 1


def test_too_little_time_for_a_given_resolution_is_said_and_used(config):
    given = GivenKeys("schedule.final_resolution")  # 64x64
    choices, networks, _ = choose_recipe(Situation(config, given, AVATARS, CPU, two_cores, 120))
    found = {choice.key: choice for choice in choices}
    assert "fewer than are worth it" in found["schedule.stable_images"].reason
    values = {key: choice.value for key, choice in found.items()}
    assert seconds_of(values, networks) == pytest.approx(120, rel=0.06)


def test_hours_without_time_for_an_update_of_every_phase_are_refused(config):
    with pytest.raises(UserError, match=r"one step of every phase up to 64x64 takes .*, and starting 0 s") as caught:
        choose(config, 0.0001, given=GivenKeys("schedule.final_resolution"))
    assert "Give at least hours=0.0" in caught.value.remedy
    starting = Situation(config, GivenKeys(), AVATARS, CPU, two_cores, seconds=-1.0, other_seconds=3600.0)
    with pytest.raises(UserError, match=r"too short: .* and starting 60 min") as caught:
        choose_recipe(starting)
    assert caught.value.remedy == "Give at least hours=2.1."  # 4x4 is the lowest


def test_the_lengths_of_a_recipe_are_scaled_to_the_time(avatars_32):
    keys = ["schedule.stable_images", "schedule.fade_images", "schedule.final_resolution", "schedule.batch"]
    given = GivenKeys(recipe=[*keys, "model.fmap_max", "loss.name"])
    found, networks, _ = choose(avatars_32, 1.0, given=given)
    assert seconds_of(found, networks) == pytest.approx(TRAINING_SHARE * 3600, rel=0.06)
    tables = found["schedule.stable_images"], avatars_32.schedule.stable_images
    assert tables[0][32] / tables[0][4] == pytest.approx(tables[1][32] / tables[1][4], rel=0.1)
    assert tables[0][32] / tables[1][32] == pytest.approx(
        found["schedule.lr_decay_images"] / avatars_32.schedule.lr_decay_images, rel=0.1
    )
    assert found["schedule.total_images"] is None
    typed = GivenKeys(*keys)
    assert not {"schedule.stable_images", "schedule.fade_images"} & set(choose(avatars_32, 1.0, given=typed)[0])


def test_growth_may_take_so_much_more_than_planned_that_half_of_the_final_resolution_stays(config, avatars_32):
    """But not where its lengths are typed, which stay; where nothing grows, the fall of the rates keeps its share."""
    key, recipe = "schedule.max_growth_share", GivenKeys(recipe=["schedule.stable_images"])
    chosen, scaled = choose(config, 1.0), choose(avatars_32, 1.0, given=recipe)
    for found, networks, batch in (chosen, scaled):
        each, side = two_cores(networks, batch), networks.resolution
        grown = seconds_of(found, networks) - each[side] * found["schedule.stable_images"][side]
        assert found[key] == pytest.approx((1 + grown / seconds_of(found, networks)) / 2, abs=0.02)
    for typed in LENGTHS:
        assert key not in choose(config, 1.0, given=GivenKeys(typed))[0]
    for typed in LENGTHS[1:]:
        assert key not in choose(avatars_32, 1.0, given=GivenKeys(typed, recipe=LENGTHS))[0]
    at_4 = replace(config, schedule=replace(config.schedule, final_resolution=4))
    assert choose(at_4, 1.0, given=GivenKeys("schedule.final_resolution"))[0][key] == 1.0


LENGTHS = [f"schedule.{key}_images" for key in ("stable", "fade", "lr_decay")]


@pytest.mark.parametrize("key", LENGTHS[1:])
def test_typed_lengths_stay_while_a_recipe_is_scaled_around_them(avatars_32, key):
    longer = avatars_32.schedule.fade_images | {32: 90_000}
    schedule = replace(avatars_32.schedule, **{key.removeprefix("schedule."): longer if "fade" in key else 777})
    recipe = replace(avatars_32, schedule=replace(schedule, total_images=65_000))  # which a longer fade would exceed
    found, networks, _ = choose(recipe, 1.0, given=GivenKeys(key, recipe=LENGTHS))
    assert key not in found
    assert {*LENGTHS} - {key} < set(found)
    lengths = {"schedule.fade_images": recipe.schedule.fade_images} | found
    assert seconds_of(lengths, networks) == pytest.approx(TRAINING_SHARE * 3600, rel=0.06)
    own, stable = recipe.schedule.stable_images, found["schedule.stable_images"]
    assert stable[32] / stable[4] == pytest.approx(own[32] / own[4], rel=0.1)


def test_fades_that_take_all_of_the_time_are_said_to(avatars_32):
    recipe = replace(avatars_32, schedule=replace(avatars_32.schedule, fade_images=10**6))
    given = GivenKeys("schedule.fade_images", recipe=LENGTHS)
    choices = choose_recipe(Situation(recipe, given, AVATARS, CPU, two_cores, 600)).choices
    reason = next(choice.reason for choice in choices if choice.key == "schedule.total_images")
    assert reason == "the hours are over before 32x32 is reached and faded in"


def test_the_lengths_of_a_recipe_hold_its_resolution_however_short_the_time(avatars_32):
    found, networks, _ = choose(avatars_32, 0.005, given=GivenKeys(recipe=["schedule.stable_images"]))
    assert networks.resolution == avatars_32.schedule.final_resolution == max(found["schedule.stable_images"])


@pytest.mark.parametrize(("hours", "least"), [(0.5, 60), (2, 60), (12, 300), (48, 600), (480, 600)])
def test_long_runs_report_every_two_minutes_up_to_six_hundred_times(config, hours, least):
    found, *_ = choose(config, hours, PORTRAITS)
    images = sum(sum(found[f"schedule.{key}_images"].values()) for key in ("stable", "fade"))
    ticks, grids = (images / found[f"monitor.{key}_images"] for key in ("tick", "grid"))
    assert 0.9 * least <= ticks < 2.6 * least
    assert 0.18 * least <= grids < 0.6 * least


@pytest.mark.parametrize(
    ("minutes", "images", "half_life", "rampup", "tick", "grid", "checkpoint"),
    [
        (5, 36_000, 1000, 0.2, 500, 2000, 10_000),  # a sixtieth is 600; 60 ticks, 12 grids, 3 checkpoints
        (2 * 60, 150_000, 2500, 0.2, 2000, 10_000, 50_000),
        (10 * 60, 300_000, 5000, 0.05, 1000, 5000, 100_000),  # 300 ticks, 60 grids
        (100 * 60, 6_000_000, 10_000, 0.05, 10_000, 50_000, 2_000_000),  # a sixtieth is 100,000; 600 ticks, 120 grids
    ],
)
def test_a_run_averages_and_reports_by_its_length(config, minutes, images, half_life, rampup, tick, grid, checkpoint):
    situation = Situation(config, GivenKeys(), PORTRAITS, CPU, two_cores, 60 * minutes)
    assert chosen_by(choose_reports, situation, images) == {
        "ema.half_life_images": half_life,
        "ema.rampup": rampup,
        "monitor.tick_images": tick,
        "monitor.grid_images": grid,
        "checkpoint.every_images": checkpoint,
    }


def test_a_run_that_never_grows_is_possible(config):
    found, networks, _ = choose(config, 0.001, PORTRAITS._replace(resolution=4))
    assert (networks.resolution, found["schedule.fade_images"]) == (4, 0)
    assert seconds_of(found, networks) == pytest.approx(TRAINING_SHARE * 3.6, rel=0.06)


def test_numbers_are_as_people_write_them():
    assert [two_digits(number, least=16) for number in (3, 16.4, 994, 12_345, 600_000)] == [
        16,
        16,
        990,
        12_000,
        600_000,
    ]
    assert [plain(number) for number in (2.83e-05, 0.25, 1.5, 10.0, 123.0)] == ["0.000029", "0.25", "1.5", "10", "130"]
    assert [one_two_five(number) for number in (3, 100, 199, 975, 1000, 6700)] == [100, 100, 100, 500, 1000, 5000]
    assert growth_seconds({4: 1.0, 8: 2.0}, STABLE, FADE) == STABLE[4] + 2 * FADE[8]


def test_drawn_images_get_a_resolution_that_they_have_more_images_for(config):
    five_minutes = choose(config, 0.083)[1], choose(config, 0.083, PORTRAITS, costs=fast(3))[1]
    drawn, photos = choose(config, 0.083, costs=fast(3))[1], five_minutes[1]
    assert (five_minutes[0].resolution, drawn.resolution, photos.resolution) == (32, 32, 64)
